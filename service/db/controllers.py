"""Controllers that share this database: their installation, and their leases on jobs.

Every transaction that acts for a job locks the lease row first and holds it to its end. A
controller that was slow or cut off finds that another has taken the lease, and its decision is
dropped. An expired lease that was not taken still counts, so the term only says how long the jobs
of a dead controller wait. All moments are the database's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from sqlalchemy import (
    Column,
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

from service.db.schema import accounts, installations, leases
from service.errors import AccountRefused, LeaseLost, SecretRefused

ACCOUNT_REMEDY = (
    "give the entry another name, or the account it had; on the same computer, name with "
    "--machines the directory whose file `account` says so, in the home of the first `machines`; "
    "if none of its machines runs any more, run: DELETE FROM accounts WHERE cloud = '{cloud}'"
)


def installation_id(connection: Connection) -> str:
    """Return the id of this installation; the first call stores a new one."""
    fresh = insert(installations).values(number=1, id=uuid4().hex)
    connection.execute(fresh.on_conflict_do_nothing())
    return str(connection.execute(select(installations.c.id)).scalar_one())


def shared_value(connection: Connection, column: Column[str], own: str) -> str:
    """Return a value that all controllers of this database share; the first stores its own."""
    installation_id(connection)
    connection.execute(update(installations).where(column.is_(None)).values({column.name: own}))
    return str(connection.execute(select(column)).scalar_one())


def check_secret(connection: Connection, fingerprint: str) -> None:
    """Check that this controller has the installation's secret.

    The first controller's fingerprint is stored.

    Raises:
        SecretRefused: It has another secret.
    """
    if shared_value(connection, installations.c.fingerprint, fingerprint) != fingerprint:
        raise SecretRefused(
            "the controllers of this database have another secret, so machines of theirs would "
            "neither be let in nor known as ours: copy the file `secret` from the home of one of "
            "them, and name the copy with --secret-file; if there is no copy left, end their "
            "machines by hand and run: UPDATE installations SET fingerprint = NULL"
        )


def check_account(connection: Connection, cloud: str, account: str) -> None:
    """Check that an entry of the clouds file leads to the account it led to before.

    The first controller's account is stored. Machines of another account would look gone to this
    controller, and it would start them again.

    Raises:
        AccountRefused: It leads to another account.
    """
    fresh = insert(accounts).values(cloud=cloud, account=account)
    connection.execute(fresh.on_conflict_do_nothing())
    query = select(accounts.c.account).where(accounts.c.cloud == cloud)
    known = connection.execute(query).scalar_one()
    if known != account:
        raise AccountRefused(
            f"the machines of {cloud} are in account {known}, and this controller looks in "
            f"{account}, from where they look gone: {ACCOUNT_REMEDY.format(cloud=cloud)}"
        )


def forget_accounts(connection: Connection) -> None:
    """Let the next controller store its accounts."""
    connection.execute(delete(accounts))


LEASE_TERM = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class JobLease:
    """The right to act for a job until another controller may take it.

    Attributes:
        token: Proof of it, new whenever the lease changes hands.
    """

    job: str
    token: str


def acquire_lease(
    connection: Connection, job: str, held: JobLease | None, term: timedelta
) -> JobLease | None:
    """Prolong the lease held, or take one that is free or expired; None while another has it."""
    # The database compares with its own clock: those of two controllers may differ by a term.
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
    return None if token is None else JobLease(job, token)


def renew_leases(connection: Connection, held: Collection[JobLease], term: timedelta) -> set[str]:
    """Prolong all leases held, in one statement; returns the jobs whose lease is still ours."""
    mine = leases.c.token.in_([lease.token for lease in held])
    until = func.now() + literal(term, Interval)
    query = update(leases).where(mine).values(expires_at=until).returning(leases.c.job)
    return set(connection.execute(query).scalars())


def leased_by_others(connection: Connection, held: Collection[JobLease]) -> set[str]:
    """Return the jobs that other controllers act for now.

    ``acquire_lease`` is not tried for them, since each try is a write.
    """
    query = select(leases.c.job).where(
        leases.c.expires_at > func.now(), leases.c.token.not_in([lease.token for lease in held])
    )
    return set(connection.execute(query).scalars())


def verify_lease(connection: Connection, lease: JobLease) -> None:
    """Lock the lease, so that it stays ours until this transaction ends.

    Raises:
        LeaseLost: Another controller has taken it: drop what was decided.
    """
    mine = (leases.c.job == lease.job, leases.c.token == lease.token)
    query = select(leases.c.job).where(*mine).with_for_update()
    if connection.execute(query).scalar() is None:
        raise LeaseLost(f"another controller acts for {lease.job} now")


@contextmanager
def under_lease(engine: Engine, lease: JobLease) -> Iterator[Connection]:
    """Open a transaction in which no other controller acts for the job.

    Raises:
        LeaseLost: Another one does already.
    """
    with engine.begin() as connection:
        verify_lease(connection, lease)
        yield connection


def release_lease(connection: Connection, lease: JobLease) -> None:
    """Let others act for the job at once."""
    mine = (leases.c.job == lease.job, leases.c.token == lease.token)
    connection.execute(delete(leases).where(*mine))
