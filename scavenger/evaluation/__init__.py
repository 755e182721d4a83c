"""How well the laws predict measurements they were not fitted to."""
