"""Machines, from the intent to launch one until it is proven gone; and launch counters.

Every launch is counted before the provider is called, and the machine carries the count in a label.
A database that was restored from a backup has an old counter, so machines launched after the backup
can be told apart. A controller that finds a counter other than its own starts a new one.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal
from uuid import UUID, uuid4, uuid5

from sqlalchemy import Connection, case, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from scavenger.protocol import Role
from service.db.jobs import group_by_job
from service.db.schema import (
    FINAL_PHASES,
    exits,
    jobs,
    launch_counters,
    outcomes,
    vm_prices,
    vms,
)
from service.offers import BillingTerms, Market, Offer, SeenPrice, price_of_run

# Launch key, the cloud's name for what it made, and when it was asked last.
LaunchStatus = tuple[str, str | None, datetime | None]

LAUNCH_KEY_NAMESPACE = UUID("5ca7e26e-0000-4000-8000-000000000001")


@dataclass(frozen=True, slots=True)
class Vm:
    """One machine of a job.

    Attributes:
        role: What it is there for.
        state: ``intended`` before the provider confirmed it, then ``launched``; ``ending`` once its
            end was ordered, ``gone`` when that is proven, and for ever.
        cloud: Where it was asked for, with ``zone``, ``machine_type``, ``market`` and ``image``.
            This offer never changes.
        price_per_hour: Dollars per hour it may cost at most.
        quantum: Seconds that are billed at once; 0 bills exactly.
        minimum: Seconds that are billed at least.
        prices: What it cost as its cloud showed it, where that moves; empty where it does not.
        prepaid: Seconds it is told at launch that it may run, the same whenever that is repeated.
        began_at: When it was first asked for; None before, and where an earlier version asked.
        attempted_at: When it was asked for last; None before.
        open_asks: How often it was asked for without an answer that is known here. Each of them may
            have started it, at any time since.
        refusal: Why the cloud certainly never started it; None where it did, or may have.
        refusal_label: The label of the cloud's error, where it was told; see `service.errors`.
        stamp: Launch count that it carries in a label, the same whenever it is asked for; None
            before the first time.
        missed_at: Since when the provider's lists do not show it; None while they do.
        warned_at: When it said that its cloud will take it back; None where it did not.
        ordered_at: When its end was ordered last, ``orders`` times in all.
        exit_code: How its training command ended; None while it runs.
        tail: The last lines that command printed.
    """

    id: str
    job: str
    role: Role
    launch_key: str
    state: Literal["intended", "launched", "ending", "gone"]
    provider_id: str | None
    cloud: str
    zone: str
    machine_type: str
    market: Market
    image: str
    price_per_hour: Decimal
    quantum: float
    minimum: float
    prepaid: float
    intended_at: datetime
    began_at: datetime | None
    attempted_at: datetime | None
    open_asks: int
    refusal: str | None
    refusal_label: str | None
    stamp: str | None
    missed_at: datetime | None
    ordered_at: datetime | None
    orders: int
    ended_at: datetime | None
    prepaid_until: datetime
    exit_code: int | None
    tail: str
    prices: tuple[SeenPrice, ...] = ()
    warned_at: datetime | None = None

    @property
    def is_alive(self) -> bool:
        """Tell whether the machine may exist, and so may cost money."""
        return self.state != "gone"

    @property
    def launch_status(self) -> LaunchStatus:
        return self.launch_key, self.provider_id, self.attempted_at

    @property
    def offer(self) -> Offer:
        """The place it was asked for at."""
        return Offer(self.cloud, self.zone, self.machine_type, self.market, self.image, self.terms)

    @property
    def terms(self) -> BillingTerms:
        return BillingTerms(
            self.price_per_hour, timedelta(seconds=self.quantum), timedelta(seconds=self.minimum)
        )

    @property
    def paid_from(self) -> datetime:
        """When it was first asked for, or may be at the earliest."""
        return self.began_at or self.intended_at

    def cost(self, until: datetime) -> Decimal:
        """Dollars from when it was first asked for to its end, or to a moment."""
        if self.attempted_at is None or self.refusal is not None or until <= self.paid_from:
            return Decimal(0)
        ended = min(self.ended_at or until, until)
        return price_of_run(self.terms, self.prices, self.paid_from, ended)

    def reserved_cost(self, until: datetime) -> Decimal:
        """Dollars it may have cost by then: from the last look at its price on, the most it may."""
        prices = self.prices
        if prices and prices[-1].since < until:
            prices = (*prices, SeenPrice(prices[-1].since, self.price_per_hour))
        return price_of_run(self.terms, prices, self.paid_from, until)


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """What is known of the machine of a launch key.

    Attributes:
        provider_id: The cloud's name for it; None while no answer told.
        over_since: When its job ended; None while that goes on.
    """

    is_alive: bool
    provider_id: str | None
    over_since: datetime | None

    def is_over_before(self, moment: datetime) -> bool:
        return self.over_since is not None and self.over_since <= moment


def of_job(connection: Connection, job: str) -> tuple[Vm, ...]:
    """Return every machine a job ever had, oldest first."""
    return of_jobs(connection, [job])[job]


def of_jobs(connection: Connection, wanted: Collection[str]) -> Mapping[str, tuple[Vm, ...]]:
    """Return every machine these jobs ever had, by job, oldest first."""
    query = (
        select(vms, exits.c.code.label("exit_code"), func.coalesce(exits.c.tail, "").label("tail"))
        .join(exits, exits.c.worker == vms.c.id, isouter=True)
        .where(vms.c.job.in_(wanted))
        .order_by(vms.c.intended_at, vms.c.id)
    )
    machines = [Vm(**row) for row in connection.execute(query).mappings()]
    spot = [vm.id for vm in machines if vm.market == "spot"]
    if spot:
        prices = seen_prices(connection, spot)
        machines = [replace(vm, prices=prices.get(vm.id, ())) for vm in machines]
    return group_by_job(wanted, machines)


def seen_prices(
    connection: Connection, wanted: Collection[str]
) -> Mapping[str, tuple[SeenPrice, ...]]:
    """Return what machines cost as their clouds showed it, by machine, in order."""
    query = select(vm_prices).where(vm_prices.c.vm.in_(wanted))
    found: dict[str, list[SeenPrice]] = {}
    for row in connection.execute(query.order_by(vm_prices.c.vm, vm_prices.c.since)):
        found.setdefault(row.vm, []).append(SeenPrice(row.since, row.price_per_hour))
    return {vm: tuple(prices) for vm, prices in found.items()}


def record_prices(connection: Connection, vm_id: str, prices: Sequence[SeenPrice]) -> None:
    """Store what a machine cost, up to the moment of the last price, which was looked up then.

    Between two looks every change must be among them: what is seen is what the machine is booked.
    """
    rows = [
        {"vm": vm_id, "since": each.since, "price_per_hour": each.price_per_hour} for each in prices
    ]
    if rows:
        connection.execute(upsert(vm_prices).on_conflict_do_nothing(), rows)


def launch_statuses(connection: Connection) -> frozenset[LaunchStatus]:
    """Return how far the launch of each machine is that may exist."""
    query = select(vms.c.launch_key, vms.c.provider_id, vms.c.attempted_at)
    rows = connection.execute(query.where(vms.c.state != "gone"))
    return frozenset((key, name, attempted_at) for key, name, attempted_at in rows)


def spot_to_look_up(connection: Connection) -> list[tuple[Vm, datetime]]:
    """Return spot machines whose price is not known up to now or their end, and since when."""
    looked = (
        select(vm_prices.c.vm, func.max(vm_prices.c.since).label("at"))
        .group_by(vm_prices.c.vm)
        .subquery()
    )
    query = (
        select(vms.c.job, vms.c.id, looked.c.at)
        .join(looked, looked.c.vm == vms.c.id, isouter=True)
        .where(
            vms.c.market == "spot",
            vms.c.provider_id.is_not(None),
            (vms.c.ended_at.is_(None)) | (looked.c.at.is_(None)) | (looked.c.at < vms.c.ended_at),
            # What a cloud has not told within a day it will not tell.
            (vms.c.ended_at.is_(None)) | (vms.c.ended_at > func.now() - timedelta(days=1)),
        )
    )
    rows = connection.execute(query).all()
    machines = {
        vm.id: vm for own in of_jobs(connection, {r.job for r in rows}).values() for vm in own
    }
    found = [(machines[row.id], row.at) for row in rows]
    return [(vm, vm.paid_from if at is None else at) for vm, at in found]


def clouds_in_use(connection: Connection) -> Set[str]:
    """Return the clouds in which machines may exist."""
    query = select(vms.c.cloud).where(vms.c.state != "gone").distinct()
    return set(connection.execute(query).scalars())


def by_launch_key(
    connection: Connection, launch_keys: Collection[str]
) -> Mapping[str, MachineRecord]:
    """Return what is known of the machines of these launch keys."""
    ended_at = case((outcomes.c.phase.in_(FINAL_PHASES), outcomes.c.finished_at))
    query = (
        select(vms.c.launch_key, vms.c.state, vms.c.provider_id, ended_at)
        .join(outcomes, outcomes.c.job == vms.c.job)
        .where(vms.c.launch_key.in_(launch_keys))
    )
    rows = connection.execute(query)
    return {key: MachineRecord(state != "gone", name, ended) for key, state, name, ended in rows}


def record_intent(
    connection: Connection,
    job: str,
    number: int,
    offer: Offer,
    now: datetime,
    prepaid: timedelta,
    *,
    boot: timedelta = timedelta(0),
    role: Role = "worker",
) -> None:
    """Write down that a machine will be launched, before it is.

    Of the time that is prepaid it may need ``boot`` to start its clock.
    """
    connection.execute(
        insert(vms).values(
            id=f"{job}-{role[0]}{number}",
            job=job,
            role=role,
            launch_key=str(uuid5(LAUNCH_KEY_NAMESPACE, f"{job}/{number}")),
            state="intended",
            cloud=offer.cloud,
            zone=offer.zone,
            machine_type=offer.machine_type,
            market=offer.market,
            image=offer.image,
            price_per_hour=offer.terms.price_per_hour,
            quantum=offer.terms.quantum.total_seconds(),
            minimum=offer.terms.minimum.total_seconds(),
            prepaid=(prepaid - boot).total_seconds(),
            open_asks=0,
            orders=0,
            intended_at=now,
            prepaid_until=now + prepaid,
        )
    )


def record_attempt(
    connection: Connection, vm_id: str, now: datetime, prepaid_until: datetime, stamp: str
) -> None:
    """Note that the provider is about to be asked for the machine, and until when it may live.

    What passed before the first time cost nothing. The first stamp stays: with EC2 a token that is
    repeated with another label is refused.
    """
    extend_prepaid(connection, vm_id, prepaid_until)
    began = case((vms.c.attempted_at.is_(None), now), else_=vms.c.began_at)
    query = update(vms).where(vms.c.id == vm_id)
    connection.execute(
        query.values(
            began_at=began,
            attempted_at=now,
            open_asks=vms.c.open_asks + 1,
            stamp=func.coalesce(vms.c.stamp, stamp),
        )
    )


def record_certain_answer(connection: Connection, vm_id: str) -> int:
    """Note that the newest ask certainly started nothing; return how many others may have."""
    query = update(vms).where(vms.c.id == vm_id).values(open_asks=vms.c.open_asks - 1)
    return int(connection.execute(query.returning(vms.c.open_asks)).scalar_one())


def record_refusal(
    connection: Connection, vm_id: str, why: str, now: datetime, label: str | None = None
) -> None:
    """Note that the machine certainly was never started: it is gone, and cost nothing."""
    query = update(vms).where(vms.c.id == vm_id, vms.c.state != "gone")
    connection.execute(query.values(state="gone", refusal=why, refusal_label=label, ended_at=now))


def record_launch(connection: Connection, vm_id: str, provider_id: str) -> None:
    """Note that the provider has the machine."""
    state = case((vms.c.state == "intended", "launched"), else_=vms.c.state)
    query = update(vms).where(vms.c.id == vm_id, vms.c.state != "gone")
    connection.execute(query.values(state=state, provider_id=provider_id, missed_at=None))


def record_missing(connection: Connection, vm_id: str, since: datetime | None) -> None:
    """Note since when lists do not show the machine, or that they do again."""
    query = update(vms).where(vms.c.id == vm_id, vms.c.state != "gone")
    connection.execute(query.values(missed_at=since))


def record_warning(connection: Connection, vm_id: str, now: datetime) -> Offer | None:
    """Note that a machine will be taken back; return its place, or None where that is no news.

    It is none when it was said before, or when the machine ends anyway.
    """
    has_ended = select(exits.c.worker).where(exits.c.worker == vm_id).exists()
    query = (
        update(vms)
        .where(vms.c.id == vm_id, vms.c.state.in_(("intended", "launched")))
        .where(vms.c.warned_at.is_(None), ~has_ended)
        .values(warned_at=now)
        .returning(vms.c.job)
    )
    job = connection.execute(query).scalar()
    if job is None:
        return None
    return next(vm.offer for vm in of_job(connection, job) if vm.id == vm_id)


def record_end_order(connection: Connection, vm_id: str, now: datetime) -> None:
    """Note that the provider is about to be told to end the machine."""
    query = update(vms).where(vms.c.id == vm_id, vms.c.state != "gone")
    connection.execute(query.values(state="ending", ordered_at=now, orders=vms.c.orders + 1))


def record_gone(connection: Connection, vm_id: str, now: datetime) -> None:
    """Note that the provider showed the machine gone; its cost ends here."""
    query = update(vms).where(vms.c.id == vm_id, vms.c.state != "gone")
    connection.execute(query.values(state="gone", ended_at=now))


def job_of_existing_vm(connection: Connection, vm_id: str) -> str | None:
    """Return the job of a machine that may still exist, or None."""
    query = select(vms.c.job).where(vms.c.id == vm_id, vms.c.state != "gone")
    return connection.execute(query).scalar()


def role_of(connection: Connection, vm_id: str) -> Role:
    """Return what a machine is there for."""
    role: Role = connection.execute(select(vms.c.role).where(vms.c.id == vm_id)).scalar_one()
    return role


def last_attempt_of(connection: Connection, vm_id: str) -> datetime | None:
    """Return when the provider was last asked for a machine; None if it never was."""
    return connection.execute(select(vms.c.attempted_at).where(vms.c.id == vm_id)).scalar()


def job_of_vm(connection: Connection, vm_id: str) -> str | None:
    """Return the job of a machine, gone or not, or None if there never was such a machine."""
    return connection.execute(select(vms.c.job).where(vms.c.id == vm_id)).scalar()


def lock_job(connection: Connection, job: str) -> None:
    """Let one transaction at a time change what a job's machines may spend."""
    connection.execute(select(jobs.c.id).where(jobs.c.id == job).with_for_update(key_share=True))


def extend_prepaid(connection: Connection, vm_id: str, prepaid_until: datetime) -> None:
    """Move the moment until which a machine's time is reserved; it never moves back."""
    query = update(vms).where(vms.c.id == vm_id, vms.c.prepaid_until < prepaid_until)
    connection.execute(query.values(prepaid_until=prepaid_until))


def record_exit(connection: Connection, vm_id: str, code: int, tail: str, now: datetime) -> bool:
    """Write down how a machine's training command ended; whether that is news: the first counts."""
    row = {"worker": vm_id, "code": code, "tail": tail, "at": now}
    query = upsert(exits).values(row).on_conflict_do_nothing().returning(exits.c.worker)
    return connection.execute(query).scalar() is not None


class LaunchCounter:
    """Launches of one controller, as long as its database remembers all of them."""

    def __init__(self) -> None:
        self._counter_id, self._launches = uuid4().hex, 0
        self._turn = threading.Lock()

    def count_launch(self, connection: Connection) -> str:
        """Count a launch, and return what its machine will carry."""
        with self._turn:
            if not self._count(connection):
                self._counter_id, self._launches = uuid4().hex, 1
                row = {"token": self._counter_id, "launches": self._launches}
                connection.execute(insert(launch_counters).values(row))
            return f"{self._counter_id}-{self._launches}"

    def _count(self, connection: Connection) -> bool:
        mine = (
            launch_counters.c.token == self._counter_id,
            launch_counters.c.launches == self._launches,
        )
        self._launches += 1
        # Another thread's count may not be committed yet: wait for it, then compare.
        connection.execute(select(launch_counters).where(mine[0]).with_for_update())
        query = update(launch_counters).where(*mine).values(launches=self._launches)
        return connection.execute(query).rowcount == 1


def launch_counts(connection: Connection, counter_ids: Iterable[str]) -> Mapping[str, int]:
    """Return the value of each of these launch counters that the database knows."""
    query = select(launch_counters).where(launch_counters.c.token.in_(set(counter_ids)))
    return {row.token: row.launches for row in connection.execute(query)}


def counter_id_of(stamp: str) -> str:
    """Return the id of the launch counter that a stamp comes from.

    >>> counter_id_of("5ca7e26e-12")
    '5ca7e26e'
    """
    return stamp.rpartition("-")[0]


def is_counted(stamp: str, known: Mapping[str, int]) -> bool:
    """Tell whether a launch was before the last thing the database remembers.

    >>> [is_counted(stamp, {"a": 2}) for stamp in ("a-2", "a-3", "b-1", "a-x", "")]
    [True, False, False, False, False]
    """
    counter_id, _, number = stamp.rpartition("-")
    is_number = number.isascii() and number.isdigit()
    return is_number and int(number) <= known.get(counter_id, 0)
