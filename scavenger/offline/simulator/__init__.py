"""Simulated jobs with a known truth, run through the same `decide` and `settle` as real ones."""
