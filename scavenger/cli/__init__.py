"""The ``scavenger`` command: one file per command group, rendering included.

Commands parse options, call the controller through ``scavenger.client`` or the library itself, and
print tables or JSON. ``worker_agent`` prints its own commands with ``output`` and ``errors``; no
module of the library imports this package.
"""
