"""Sessions of a job's workers: what happens between two iterations."""
