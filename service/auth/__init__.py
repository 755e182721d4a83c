"""Who may do what: principals, permissions, tokens, secrets of jobs, and rate limits.

Nothing here reads the database; ``service.db.access`` stores the tokens.
"""
