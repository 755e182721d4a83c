"""The pool of connections to the database: one that does not answer keeps nobody waiting."""

from __future__ import annotations

from sqlalchemy import Engine, create_engine

LONGEST_WAIT = 5.0
# A database that is silent is away: Linux itself would wait for a quarter of an hour.
PATIENCE = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


def open_pool(url: str) -> Engine:
    """Return an engine for a database that may be away; nothing is connected yet."""
    return create_engine(
        url,
        pool_size=10,
        max_overflow=20,
        pool_pre_ping=True,
        pool_timeout=LONGEST_WAIT,
        hide_parameters=True,
        connect_args=PATIENCE,
    )
