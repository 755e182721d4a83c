"""The routes, one module per group.

A route parses its input, calls one function in a transaction, and returns one view. Its signature
states who may use it.
"""
