"""Connects Hugging Face's trainer and Lightning, which own the training loop, to a session.

A script imports the module of its trainer; the agent itself imports none of them, and installs
none. Each is thin: the session measures and resizes as in a loop of one's own.
"""
