"""The ``scavenger`` command: thin commands, and pure functions that show what they found."""
