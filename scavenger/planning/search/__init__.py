"""Search strategies: which configurations to probe before one is chosen, and when to stop."""
