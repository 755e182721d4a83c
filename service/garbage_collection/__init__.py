"""Finds machines of this installation that no job needs, and terminates them.

Judging is pure and spares a machine when in doubt; a circuit breaker stops a collection that would
terminate too many.
"""
