"""The REST client of the controller, its errors, and where its address and token come from.

The command line and programs of users call it. The shapes of answers are in ``scavenger.schemas``.
"""
