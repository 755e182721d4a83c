"""Scavenger chooses how many workers and which global batch a training job should use.

The package holds the mathematics only: a frozen value goes in, a decision comes out.
``service`` acts on the decisions, ``worker_agent`` measures; both import from here.
"""
