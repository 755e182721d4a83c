"""``agent run``: starts a script that knows nothing of the agent, and starts it again to resize."""
