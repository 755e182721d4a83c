"""Schemas of the REST API: what the controller answers, and clients and commands read."""
