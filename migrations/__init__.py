"""Alembic's scripts; ``service.db.database`` runs them, and there is no alembic.ini."""
