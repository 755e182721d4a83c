"""The leases table: which controller acts for a job now; all moments are the database's own.

Several controllers may run. One that was slow, or cut off, finds that another has taken its lease
when it writes, and what it had decided is thrown away: every transaction that acts for a job checks
the lease first, and holds its row until it ends. A lease that is over but that nobody took is still
good, so its term only says how long the jobs of a dead controller wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from sqlalchemy import (
    Connection,
    Engine,
    Interval,
    case,
    delete,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from service.db.schema import leases
from service.errors import LeaseLost

TERM = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to act for a job until somebody else may take it.

    Attributes:
        token: Proof of it, new whenever the lease changes hands.
    """

    job: str
    token: str


def take(connection: Connection, job: str, held: Lease | None, term: timedelta) -> Lease | None:
    """Prolong the lease one has, or take one that is free or over; None while another has it."""
    mine, fresh = "" if held is None else held.token, str(uuid4())
    until = func.now() + literal(term, Interval)
    is_mine = leases.c.token == mine
    query = (
        insert(leases)
        .values(job=job, token=fresh, expires_at=until)
        .on_conflict_do_update(
            index_elements=[leases.c.job],
            set_={"token": case((is_mine, mine), else_=fresh), "expires_at": until},
            where=or_(leases.c.expires_at <= func.now(), is_mine),
        )
        .returning(leases.c.token)
    )
    token = connection.execute(query).scalar()
    return None if token is None else Lease(job, token)


def prolong(connection: Connection, held: Collection[Lease], term: timedelta) -> set[str]:
    """Prolong all leases one has, in one statement; returns the jobs whose lease is still ours."""
    mine = leases.c.token.in_([lease.token for lease in held])
    until = func.now() + literal(term, Interval)
    query = update(leases).where(mine).values(expires_at=until).returning(leases.c.job)
    return set(connection.execute(query).scalars())


def of_others(connection: Connection, held: Collection[Lease]) -> set[str]:
    """Return the jobs that others act for now; asking each time for one of those would write."""
    query = select(leases.c.job).where(
        leases.c.expires_at > func.now(), leases.c.token.not_in([lease.token for lease in held])
    )
    return set(connection.execute(query).scalars())


def check(connection: Connection, lease: Lease) -> None:
    """Let nobody else take the lease before this transaction ends.

    Raises:
        LeaseLost: Somebody has taken it already: throw away what was decided.
    """
    mine = (leases.c.job == lease.job, leases.c.token == lease.token)
    query = select(leases.c.job).where(*mine).with_for_update()
    if connection.execute(query).scalar() is None:
        raise LeaseLost(f"another controller acts for {lease.job} now")


@contextmanager
def acting(engine: Engine, lease: Lease) -> Iterator[Connection]:
    """Open a transaction in which nobody else acts for the job.

    Raises:
        LeaseLost: Somebody else does already.
    """
    with engine.begin() as connection:
        check(connection, lease)
        yield connection


def give_back(connection: Connection, lease: Lease) -> None:
    """Let others act for the job at once."""
    mine = (leases.c.job == lease.job, leases.c.token == lease.token)
    connection.execute(delete(leases).where(*mine))
