"""Orders: what users ask of running jobs.

The API inserts them, and the reconciler ends each once, in the transaction of the action that obeys
it. What stands for a job follows from its orders (``service.state.orders``) and is stored nowhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, exists, func, insert, or_, select, update

from scavenger.schemas.orders import WISHES, OrderKind, OrderState, Wish
from service.db.jobs import group_by_job
from service.db.schema import jobs, orders


@dataclass(frozen=True, slots=True)
class StoredOrder:
    """One order of a job.

    Attributes:
        number: Counts the orders of the job from 1.
        by: Id of the token of who asked.
        told: What became of it, in one sentence; None while it is open.
    """

    job: str
    number: int
    kind: OrderKind
    wish: Wish
    reason: str
    by: str
    at: datetime
    state: OrderState = "open"
    told: str | None = None
    ended_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is still to be obeyed."""
        return self.state == "open"

    @property
    def document(self) -> dict[str, Any]:
        """The wish as it was sent."""
        return wish_document(self.wish)


def wish_document(wish: Wish) -> dict[str, Any]:
    """Return a wish as it was sent: what was left out stays left out."""
    return wish.model_dump(mode="json", exclude_unset=True)


def give_order(
    connection: Connection,
    job: str,
    kind: OrderKind,
    wish: Wish,
    *,
    reason: str,
    by: str,
    now: datetime,
) -> StoredOrder:
    """Store an order under the next number of its job, which the caller holds locked."""
    number = last_number(connection, job) + 1
    order = StoredOrder(job, number, kind, wish, reason, by, now)
    row = {
        "job": job,
        "number": number,
        "kind": kind,
        "wish": order.document,
        "reason": reason,
        "token": by,
        "at": now,
        "state": order.state,
    }
    connection.execute(insert(orders).values(row))
    return order


def last_number(connection: Connection, job: str) -> int:
    """Return how many orders a job was given."""
    query = select(func.coalesce(func.max(orders.c.number), 0)).where(orders.c.job == job)
    return int(connection.execute(query).scalar_one())


def standing_orders_of(
    connection: Connection, wanted: Collection[str]
) -> Mapping[str, tuple[StoredOrder, ...]]:
    """Return the orders of these jobs that may bear on what stands, by job, oldest first.

    The others count for nothing: what was refused, resizes and probes that were replaced, and those
    that were done before the last of their kind.
    """
    later = orders.alias("later")
    is_outdone = exists().where(
        orders.c.kind.in_(("resize", "probe")),
        orders.c.state == "done",
        later.c.job == orders.c.job,
        later.c.kind == orders.c.kind,
        later.c.state == "done",
        later.c.number > orders.c.number,
    )
    did_hold = and_(orders.c.kind.not_in(("resize", "probe")), orders.c.state == "replaced")
    query = (
        select(orders)
        .where(orders.c.job.in_(wanted), ~is_outdone)
        .where(or_(orders.c.state.in_(("open", "done")), did_hold))
        .order_by(orders.c.job, orders.c.number)
    )
    rows = group_by_job(wanted, connection.execute(query))
    return {job: tuple(map(order_of_row, own)) for job, own in rows.items()}


def orders_before(
    connection: Connection, job: str, before: int | None, limit: int
) -> tuple[StoredOrder, ...]:
    """Return orders of a job newest first, from below a number."""
    query = select(orders).where(orders.c.job == job).order_by(orders.c.number.desc()).limit(limit)
    if before is not None:
        query = query.where(orders.c.number < before)
    return tuple(map(order_of_row, connection.execute(query)))


def is_given_since(connection: Connection, job: str, number: int) -> bool:
    """Whether a later order than this one is open; none is given until this transaction ends."""
    # An order that is being stored holds the job until it is there.
    job_row = select(jobs.c.id).where(jobs.c.id == job)
    connection.execute(job_row.with_for_update(read=True, key_share=True))
    mine = (orders.c.job == job, orders.c.state == "open", orders.c.number > number)
    return connection.execute(select(orders.c.number).where(*mine).limit(1)).first() is not None


def end_order(
    connection: Connection, job: str, number: int, state: OrderState, told: str, now: datetime
) -> None:
    """Write down what became of an order that is open."""
    query = update(orders).where(
        orders.c.job == job, orders.c.number == number, orders.c.state == "open"
    )
    connection.execute(query.values(state=state, told=told, ended_at=now))


def order_of_row(row: Row[Any]) -> StoredOrder:
    """Turn a row into an order."""
    return StoredOrder(
        row.job,
        row.number,
        row.kind,
        WISHES[row.kind].model_validate(row.wish),
        row.reason,
        row.token,
        row.at,
        row.state,
        row.told,
        row.ended_at,
    )
