"""Commands of ``python -m worker_agent``, one module each; ``scavenger agent`` hands over to it."""
