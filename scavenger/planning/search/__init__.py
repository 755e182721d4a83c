"""Search strategies: which configurations to profile before one is chosen, and when to stop."""
