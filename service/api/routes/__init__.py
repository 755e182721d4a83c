"""Endpoints, one module per group.

Each route parses its input, opens one transaction and returns one view.
"""
