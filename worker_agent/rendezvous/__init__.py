"""How workers find each other and agree on the members of the next generation.

Each worker serves a small key-value store; the members of a generation meet at its leader's.
Called by the training sessions and by the launcher.
"""
