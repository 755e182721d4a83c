"""Which configurations to profile, and in which order."""
