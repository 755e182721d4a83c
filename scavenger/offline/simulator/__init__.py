"""Simulated jobs with a known truth, run through the `decide` and `evaluate_probe` of real ones."""
