"""The controller: stores jobs, decides with the library, acts on clouds, answers over HTTP.

Start it with ``scavenger serve`` or ``python -m service``. Everything it knows is in one Postgres
database, so several controllers can share the work and each can be killed at any moment.
"""
