"""The embedded Postgres server, and backups.

A controller that is given no database starts this server. The CLI runs the backup module.
"""
