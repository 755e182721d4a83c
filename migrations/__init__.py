"""Alembic's scripts; ``service.db.migrate`` runs them, and there is no alembic.ini."""
