"""Webhooks, and the deliveries of events to them.

Deliveries are made from the numbers of events, which become visible in their order (ADR 31): each
webhook has seen all events up to one number, and ``make_deliveries`` moves that number in the
transaction that inserts the rows. A controller that dies there leaves neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    Select,
    delete,
    func,
    insert,
    literal,
    select,
    tuple_,
    update,
)

from scavenger.schemas.webhooks import DeliveryState, EventKind, WebhookKind
from service.auth.permissions import EVERY_PROJECT
from service.db.schema import deliveries, events, jobs, webhooks


@dataclass(frozen=True, slots=True)
class StoredWebhook:
    """A webhook as stored.

    Attributes:
        enabled_at: When a person switched it on; None while a person has switched it off.
        rotations: How often its secret was replaced, which says what the secret is.
        rotated_at: When that was the last time.
        failing_since: When a try failed for the first time since the last that succeeded.
        gave_up_at: When the controller switched it off.
        gave_up_why: Why it did.
        seen: Number of the last event for which deliveries were made.
    """

    id: str
    project: str
    url: str
    kind: WebhookKind
    events: tuple[EventKind, ...]
    created_at: datetime
    created_by: str
    enabled_at: datetime | None
    rotations: int = 0
    rotated_at: datetime | None = None
    failing_since: datetime | None = None
    gave_up_at: datetime | None = None
    gave_up_why: str | None = None
    seen: int = 0

    @property
    def disabled_why(self) -> str | None:
        """Why nothing is sent; None while events are."""
        if self.enabled_at is None:
            return "it was disabled by a request"
        if self.gave_up_at is not None and self.gave_up_at >= self.enabled_at:
            return self.gave_up_why
        return None


def create(connection: Connection, webhook: StoredWebhook) -> None:
    """Store a webhook; it is told of events from now on."""
    row = {
        "id": webhook.id,
        "project": webhook.project,
        "url": webhook.url,
        "kind": webhook.kind,
        "events": list(webhook.events),
        "created_at": webhook.created_at,
        "created_by": webhook.created_by,
        "enabled_at": webhook.enabled_at,
        "rotations": webhook.rotations,
        "seen": newest_event(connection),
    }
    connection.execute(insert(webhooks).values(row))


def newest_event(connection: Connection) -> int:
    """Return the number of the newest event; 0 if there is none."""
    query = select(func.max(events.c.sequence)).where(events.c.sequence > 0)
    return int(connection.execute(query).scalar() or 0)


def find(connection: Connection, webhook: str) -> StoredWebhook | None:
    """Return a webhook; None if there is none of that id."""
    row = connection.execute(select(webhooks).where(webhooks.c.id == webhook)).first()
    return None if row is None else webhook_of_row(row)


def page_of_webhooks(
    connection: Connection, project: str, before: tuple[datetime, str] | None, limit: int
) -> Sequence[StoredWebhook]:
    """Return webhooks of a project newest first, from below a position."""
    order = tuple_(webhooks.c.created_at, webhooks.c.id)
    query = select(webhooks).order_by(webhooks.c.created_at.desc(), webhooks.c.id.desc())
    if project != EVERY_PROJECT:
        query = query.where(webhooks.c.project == project)
    if before is not None:
        query = query.where(order < before)
    return [webhook_of_row(row) for row in connection.execute(query.limit(limit))]


def count_in_project(connection: Connection, project: str) -> int:
    """Return how many webhooks a project has."""
    query = select(func.count()).select_from(webhooks).where(webhooks.c.project == project)
    return int(connection.execute(query).scalar_one())


def change(connection: Connection, webhook: str, **values: object) -> None:
    """Change columns that belong to the API."""
    connection.execute(update(webhooks).where(webhooks.c.id == webhook).values(**values))


def rotate(connection: Connection, webhook: str, now: datetime) -> None:
    """Replace the secret of a webhook."""
    following = webhooks.c.rotations + 1
    change(connection, webhook, rotations=following, rotated_at=now)


def remove(connection: Connection, webhook: str) -> None:
    """Delete a webhook, and all its deliveries with it."""
    connection.execute(delete(webhooks).where(webhooks.c.id == webhook))


def webhook_of_row(row: Row[Any]) -> StoredWebhook:
    """Turn a row into a webhook."""
    facts = row._mapping
    stored = {name: facts[name] for name in StoredWebhook.__dataclass_fields__}
    kinds = tuple(EventKind(each) for each in facts["events"])
    return StoredWebhook(**{**stored, "kind": WebhookKind(facts["kind"]), "events": kinds})


@dataclass(frozen=True, slots=True)
class StoredDelivery:
    """A delivery as stored, with what its event says.

    Attributes:
        event: Number of the event; None for a test, of which all that follows is None, too.
        message: The sentence of the event.
        happened_at: When it happened.
        name: Name of its job.
        project: Project of its job.
    """

    number: int
    webhook: str
    event: int | None
    replay_of: int | None
    created_at: datetime
    state: DeliveryState
    attempts: int
    next_try_at: datetime
    status: int | None
    told: str | None
    ended_at: datetime | None
    kind: str | None
    job: str | None
    message: str | None
    happened_at: datetime | None
    name: str | None
    project: str | None

    @property
    def message_id(self) -> str:
        """What a receiver knows repetitions by: the same in every try and replay.

        It never holds a dot, which separates it from what follows where it is signed.
        """
        what = f"test{self.number}" if self.event is None else str(self.event)
        return f"msg_{self.webhook.removeprefix('whk_')}_{what}"


EVENT_FACTS = (
    events.c.kind,
    events.c.job,
    events.c.message,
    events.c.at.label("happened_at"),
    jobs.c.name,
    jobs.c.project,
)


def select_deliveries() -> Select[Any]:
    """Select deliveries with their events, where they have one."""
    return (
        select(deliveries, *EVENT_FACTS)
        .outerjoin(events, events.c.sequence == deliveries.c.event)
        .outerjoin(jobs, jobs.c.id == events.c.job)
    )


def delivery_of_row(row: Row[Any]) -> StoredDelivery:
    """Turn a joined row into a delivery."""
    stored = {name: row._mapping[name] for name in StoredDelivery.__dataclass_fields__}
    return StoredDelivery(**{**stored, "state": DeliveryState(stored["state"])})


def request_delivery(
    connection: Connection, webhook: str, now: datetime, replayed: StoredDelivery | None = None
) -> StoredDelivery:
    """Store a delivery that a person asks for: of an event that was sent before, or a test."""
    row = {
        "webhook": webhook,
        "event": None if replayed is None else replayed.event,
        "replay_of": None if replayed is None else replayed.number,
        "created_at": now,
        "state": DeliveryState.WAITING,
        "attempts": 0,
        "next_try_at": now,
    }
    query = insert(deliveries).values(row).returning(deliveries.c.number)
    number = int(connection.execute(query).scalar_one())
    found = find_delivery(connection, webhook, number)
    assert found is not None
    return found


def find_delivery(connection: Connection, webhook: str, number: int) -> StoredDelivery | None:
    """Return a delivery of a webhook; None if it has none of that number."""
    is_it = (deliveries.c.webhook == webhook, deliveries.c.number == number)
    row = connection.execute(select_deliveries().where(*is_it)).first()
    return None if row is None else delivery_of_row(row)


def deliveries_before(
    connection: Connection, webhook: str, before: int | None, limit: int
) -> Sequence[StoredDelivery]:
    """Return the deliveries of a webhook below a number, newest first."""
    query = select_deliveries().where(deliveries.c.webhook == webhook)
    if before is not None:
        query = query.where(deliveries.c.number < before)
    rows = connection.execute(query.order_by(deliveries.c.number.desc()).limit(limit))
    return [delivery_of_row(row) for row in rows]


def make_deliveries(connection: Connection, now: datetime) -> int:
    """Make a delivery of every event that a webhook has not seen yet, and wants.

    Controllers share the work: a webhook that another one is busy with is left to it.

    Returns:
        How many were made.
    """
    newest, made = newest_event(connection), 0
    behind = select(webhooks).where(webhooks.c.seen < newest).with_for_update(skip_locked=True)
    for row in connection.execute(behind).all():
        webhook = webhook_of_row(row)
        if webhook.disabled_why is None:
            made += make_deliveries_of(connection, webhook, newest, now)
        connection.execute(update(webhooks).where(webhooks.c.id == webhook.id).values(seen=newest))
    return made


def make_deliveries_of(
    connection: Connection, webhook: StoredWebhook, newest: int, now: datetime
) -> int:
    """Make the deliveries of one webhook, up to an event; returns how many."""
    wanted = (
        select(
            literal(webhook.id),
            events.c.sequence,
            literal(now),
            literal(DeliveryState.WAITING.value),
            literal(0),
            literal(now),
        )
        .join(jobs, jobs.c.id == events.c.job)
        .where(events.c.sequence > webhook.seen, events.c.sequence <= newest)
        .order_by(events.c.sequence)
    )
    if EventKind.EVERY not in webhook.events:
        wanted = wanted.where(events.c.kind.in_([str(kind) for kind in webhook.events]))
    if webhook.project != EVERY_PROJECT:
        wanted = wanted.where(jobs.c.project == webhook.project)
    names = ["webhook", "event", "created_at", "state", "attempts", "next_try_at"]
    return connection.execute(insert(deliveries).from_select(names, wanted)).rowcount


@dataclass(frozen=True, slots=True)
class DueDelivery:
    """A delivery that is to be tried now, and its webhook."""

    delivery: StoredDelivery
    webhook: StoredWebhook


def claim_due(
    connection: Connection, now: datetime, of_each: int, limit: int
) -> Sequence[DueDelivery]:
    """Lock deliveries that are due, the oldest first, and no more than some of each webhook.

    The caller postpones or ends each in this transaction, so that no other controller tries it.
    """
    is_due = (deliveries.c.state == "waiting", deliveries.c.next_try_at <= now)
    place = func.row_number().over(
        partition_by=deliveries.c.webhook, order_by=(deliveries.c.next_try_at, deliveries.c.number)
    )
    ranked = select(deliveries.c.number, place.label("place")).where(*is_due).subquery()
    chosen = select(ranked.c.number).where(ranked.c.place <= of_each)
    query = (
        select_deliveries()
        # Once more: another controller may have postponed it while this one looked.
        .where(deliveries.c.number.in_(chosen), *is_due)
        .order_by(deliveries.c.next_try_at, deliveries.c.number)
        .limit(limit)
        .with_for_update(of=deliveries, skip_locked=True)
    )
    found = [delivery_of_row(row) for row in connection.execute(query)]
    named = select(webhooks).where(webhooks.c.id.in_({each.webhook for each in found}))
    known = {row.id: webhook_of_row(row) for row in connection.execute(named)}
    return [DueDelivery(each, known[each.webhook]) for each in found if each.webhook in known]


def record_attempt(connection: Connection, number: int, next_try_at: datetime) -> None:
    """Count a request before it is sent, and postpone the next as if this one failed."""
    connection.execute(
        update(deliveries)
        .where(deliveries.c.number == number)
        .values(attempts=deliveries.c.attempts + 1, next_try_at=next_try_at)
    )


def record_success(connection: Connection, due: DueDelivery, status: int, now: datetime) -> None:
    """Store that the receiver has the event."""
    # The webhook first, in the order of a deletion, which cascades.
    connection.execute(
        update(webhooks)
        .where(webhooks.c.id == due.webhook.id, webhooks.c.failing_since.is_not(None))
        .values(failing_since=None)
    )
    connection.execute(
        update(deliveries)
        .where(deliveries.c.number == due.delivery.number)
        .values(state=DeliveryState.DELIVERED, status=status, told=None, ended_at=now)
    )


def record_failure(
    connection: Connection,
    due: DueDelivery,
    now: datetime,
    told: str,
    *,
    status: int | None = None,
    is_last: bool = False,
    gave_up_why: str | None = None,
) -> None:
    """Store that a try failed.

    Args:
        connection: The database.
        due: What was tried.
        now: The present moment.
        told: What went wrong.
        status: HTTP status of the answer, if there was one.
        is_last: Whether it is not tried any more.
        gave_up_why: Why the webhook is switched off, if it is.
    """
    if due.delivery.event is not None:  # a test tells nothing of the receiver's past
        values: dict[str, object] = {"failing_since": func.coalesce(webhooks.c.failing_since, now)}
        if gave_up_why is not None:
            values |= {"gave_up_at": now, "gave_up_why": gave_up_why}
        connection.execute(update(webhooks).where(webhooks.c.id == due.webhook.id).values(values))
    ended = {"state": DeliveryState.FAILED, "ended_at": now} if is_last else {}
    connection.execute(
        update(deliveries)
        .where(deliveries.c.number == due.delivery.number, deliveries.c.state == "waiting")
        .values(status=status, told=told, **ended)
    )


def abandon(connection: Connection, number: int, told: str, now: datetime) -> None:
    """End a delivery without another request."""
    connection.execute(
        update(deliveries)
        .where(deliveries.c.number == number)
        .values(state=DeliveryState.FAILED, told=told, ended_at=now)
    )


def delete_old_deliveries(connection: Connection, before: datetime) -> int:
    """Delete deliveries that ended before a moment; returns how many there were."""
    return connection.execute(delete(deliveries).where(deliveries.c.ended_at < before)).rowcount
