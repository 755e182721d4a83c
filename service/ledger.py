"""The prepaid ledger: machines run on time that is reserved before, never above the job's cap.

At every moment spent + reserved <= max_cost, where a machine reserves its price from when it is
first asked for to ``prepaid_until``. A machine powers itself off when its prepaid time ends, so the
cap holds even when the controller is dead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import Connection

from scavenger.job.spec import JobSpec
from scavenger.protocol import Role
from service.db import vms
from service.db.vms import Vm
from service.offers import BillingTerms

RENEWAL_SPAN = timedelta(minutes=10)
MIN_RUN = timedelta(seconds=10)
POWER_OFF_GRACE = timedelta(seconds=6)


def terms_for_role(worker: BillingTerms, spec: JobSpec, role: Role) -> BillingTerms:
    """Return what a machine of a job is billed; a server nothing where servers are not priced."""
    return terms_together(worker, spec, *((0, 1) if role == "server" else (1, 0)))


def terms_together(worker: BillingTerms, spec: JobSpec, workers: int, servers: int) -> BillingTerms:
    """Return what machines that start together are billed, as if they were one.

    A worker's machine is as large as the largest local batch needs.
    """
    price = workers * worker.price_per_hour + servers * spec.server_price
    return replace(worker, price_per_hour=price)


def committed(machines: Sequence[Vm]) -> Decimal:
    """Dollars that are spent or reserved, including the seconds a machine needs to power off."""
    return sum((committed_by_machine(vm) for vm in machines), Decimal(0))


def committed_by_machine(vm: Vm) -> Decimal:
    """Dollars one machine has spent, or may still spend if no controller answers it again."""
    if vm.ended_at is None:
        return vm.reserved_cost(vm.prepaid_until + POWER_OFF_GRACE)
    has_cost = vm.attempted_at is not None and vm.refusal is None
    return vm.reserved_cost(vm.ended_at) if has_cost else Decimal(0)


def accrued(machines: Sequence[Vm], until: datetime) -> Decimal:
    """Dollars spent up to a moment, from the intervals in which machines existed."""
    return sum((vm.cost(until) for vm in machines), Decimal(0))


# Rounded per machine, before amounts are added or subtracted: then no order of adding shows.
MONEY_RESOLUTION = Decimal("0.000000001")


def booked(machines: Sequence[Vm], until: datetime) -> Decimal:
    """Dollars spent up to a moment as every page shows them; sums of parts are exact."""
    return sum((round_money(vm.cost(until)) for vm in machines), Decimal(0))


def reserved(machines: Sequence[Vm], until: datetime) -> Decimal:
    """Dollars held back besides what is booked, as every page shows them."""
    held = sum((round_money(committed_by_machine(vm)) for vm in machines), Decimal(0))
    # A machine that outlives its prepaid time has spent more than was reserved for it.
    return max(held - booked(machines, until), Decimal(0))


def round_money(amount: Decimal) -> Decimal:
    """Round dollars to what pages show: probes of small jobs cost less than a cent.

    >>> round_money(Decimal("0.1234567891234"))
    Decimal('0.123456789')
    """
    return amount.quantize(MONEY_RESOLUTION)


def affordable_span(
    machines: Sequence[Vm],
    spec: JobSpec,
    worker: BillingTerms,
    workers: int,
    servers: int,
    boot: timedelta,
) -> timedelta | None:
    """Return the time that the cap can prepay for a launch; None when it is too short to be of use.

    The plan and the launch itself both ask this, so that no launch is planned that the ledger then
    refuses: such a plan would be made again at every tick.

    Args:
        machines: Every machine the job ever had.
        spec: The job.
        worker: What one machine that trains is billed.
        workers: Machines to launch that train.
        servers: Machines to launch that serve parameters.
        boot: Seconds of the prepaid time that a machine may need to start its clock.
    """
    cap, terms = spec.limits.max_cost, terms_together(worker, spec, workers, servers)
    if cap is None or terms.price_per_hour == 0:
        return RENEWAL_SPAN + boot
    paid = span_for(cap - committed(machines), terms)
    if paid < terms.minimum:
        return None  # less than the least that is billed
    span = min(paid - POWER_OFF_GRACE, RENEWAL_SPAN + boot)
    return span if span - boot >= MIN_RUN else None


def reserve_attempt(
    connection: Connection,
    machine: Vm,
    cap: Decimal | None,
    now: datetime,
    boot: timedelta,
    stamp: str,
) -> bool:
    """Reserve what a machine may cost that is asked for now; whether the cap pays for it.

    It is unknown which of several attempts made the machine; its own clock starts with that one. It
    costs from the first of them, so what was reserved for that one is enough however late it is.
    """
    # Read again under the lock: another machine of the job may have renewed its lease since.
    vms.lock_job(connection, machine.job)
    machines = vms.of_job(connection, machine.job)
    (vm,) = (each for each in machines if each.id == machine.id)
    until = max(vm.prepaid_until, now + timedelta(seconds=vm.prepaid) + boot)
    began = now if vm.attempted_at is None else vm.paid_from
    longer = replace(vm, began_at=began, prepaid_until=until)
    if (
        cap is not None
        and committed(machines) - committed_by_machine(vm) + committed_by_machine(longer) > cap
    ):
        return False
    vms.record_attempt(connection, vm.id, now, until, stamp)
    return True


def max_run_seconds(terms: BillingTerms, cap: Decimal | None) -> float:
    """Return the seconds that one machine could run if it had all of a job's money."""
    if cap is None or terms.price_per_hour == 0:
        return math.inf
    return span_for(cap, terms).total_seconds()


def span_for(dollars: Decimal, terms: BillingTerms) -> timedelta:
    """Return the whole milliseconds or quanta of a machine's time that so many dollars buy.

    Rounding up would pass the cap. The least that is billed is left to the caller.
    """
    milliseconds = max(dollars, Decimal(0)) * 3_600_000 / terms.price_per_hour
    span = timedelta(milliseconds=math.floor(milliseconds))
    return span - span % terms.quantum if terms.quantum else span


def reserve_more_time(
    connection: Connection,
    job: str,
    vm_id: str,
    cap: Decimal | None,
    now: datetime,
    *,
    is_over: bool = False,
) -> timedelta:
    """Reserve more time for a machine as far as the cap allows; returns the time it has left.

    A job that is over gets no more time, nor does a machine that was told to end.
    """
    vms.lock_job(connection, job)
    machines = vms.of_job(connection, job)
    vm = next(machine for machine in machines if machine.id == vm_id)
    is_ending = is_over or vm.state == "ending"
    wanted = vm.prepaid_until if is_ending else now + RENEWAL_SPAN
    if cap is not None and vm.price_per_hour > 0:
        paid = vm.terms.billed(vm.prepaid_until + POWER_OFF_GRACE - vm.paid_from)
        free = span_for(cap - committed(machines), vm.terms)
        wanted = min(wanted, vm.paid_from + paid + free - POWER_OFF_GRACE)
    until = max(wanted, vm.prepaid_until)
    vms.extend_prepaid(connection, vm_id, until)
    return until - now
