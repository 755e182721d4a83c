"""The first process of a machine: it runs the training command and enforces the lease.

``python -m worker_agent.supervisor`` is what a cloud starts. It restarts a command
that died through no fault of its own and tells the controller why a command ended.
"""
