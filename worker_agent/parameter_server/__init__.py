"""Processes that hold the weights: workers push gradients to them and fetch weights from them.

``python -m worker_agent.parameter_server`` runs one server; the client is what a worker's
strategy uses.
"""
