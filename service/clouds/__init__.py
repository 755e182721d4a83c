"""Clouds: the contract of providers, the providers, and what the controller needs around them.

A provider is one module and one line in the registry. No cloud is called inside a database session.
"""
