"""What listens inside a training process whose script knows nothing of the agent."""
