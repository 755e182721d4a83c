"""Who may do what: principals and permissions, tokens, the secrets of jobs, and rate limits.

The API and ``service.db`` call it. It never reads the database: ``service.db.access`` stores the
tokens.
"""
