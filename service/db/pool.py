"""The connections of a controller to its database: one that does not answer keeps nobody waiting.

A controller that hangs, or whose computer sleeps, may do so within a transaction and hold the rows
that another needs to take over. The server ends such a transaction after a while.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Engine, create_engine, exc

# What is raised where the database is away, or has hung up: the same may be asked again soon.
AWAY = (exc.OperationalError, exc.InterfaceError, exc.InternalError, exc.TimeoutError)
LONGEST_WAIT = 5.0
LONGEST_SILENCE = timedelta(seconds=10)
# A database that is silent is away: Linux itself would wait for a quarter of an hour.
PATIENCE = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


def open_pool(url: str, silence: timedelta = LONGEST_SILENCE) -> Engine:
    """Return an engine for a database that may be away; nothing is connected yet.

    Args:
        url: The database.
        silence: How long a transaction may wait for its controller before it is rolled back.
    """
    idle = f"-c idle_in_transaction_session_timeout={silence // timedelta(milliseconds=1)}"
    return create_engine(
        url,
        pool_size=10,
        max_overflow=20,
        pool_pre_ping=True,
        pool_timeout=LONGEST_WAIT,
        hide_parameters=True,
        connect_args={"options": idle, **PATIENCE},
    )
