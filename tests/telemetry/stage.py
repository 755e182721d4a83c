"""A job with machines that said hello, written into a database, and what should be known of it."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from scavenger.protocol import Hello
from service.db import jobs, vms, workers
from tests.builders import offer, spec


def set_up(connection: Connection, job: str, number: int) -> list[str]:
    """Write a job with so many machines that said hello; returns their names."""
    now = datetime.now(UTC)
    jobs.create(connection, job, spec(), now)
    for place in range(1, number + 1):
        terms = offer("0.36")
        vms.record_intent(connection, job, place, terms, now, timedelta(hours=9))
        workers.record_hello(connection, job, Hello(f"{job}-w{place}", "127.0.0.1:1"), now)
    return [f"{job}-w{place}" for place in range(1, number + 1)]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
