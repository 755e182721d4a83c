"""The prepaid ledger: machines run on time that is reserved before, never above the job's cap.

At every moment spent + reserved <= max_cost, where a machine reserves its price from its intent to
``prepaid_until``. A machine powers itself off when its prepaid time ends, so the cap holds even
when the controller is dead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import Connection

from service.db import vms
from service.db.vms import Vm, price_of

SLICE = timedelta(minutes=10)
SHORTEST = timedelta(seconds=10)
GRACE = timedelta(seconds=6)


def committed(machines: Sequence[Vm]) -> Decimal:
    """Dollars that are spent or reserved, including the seconds a machine needs to power off."""
    return sum((committed_by(vm) for vm in machines), Decimal(0))


def committed_by(vm: Vm) -> Decimal:
    """Dollars one machine has spent, or may still spend if nobody ever speaks to it again."""
    end = vm.ended_at if vm.ended_at is not None else vm.prepaid_until + GRACE
    return price_of(vm.price_per_hour, end - vm.intended_at)


def accrued(machines: Sequence[Vm], until: datetime) -> Decimal:
    """Dollars spent up to a moment, from the intervals in which machines existed."""
    return sum((vm.cost(until) for vm in machines), Decimal(0))


def affordable(
    machines: Sequence[Vm], cap: Decimal | None, price: Decimal, count: int
) -> timedelta | None:
    """Return the time that can be prepaid for so many new machines; None when it is too short."""
    if cap is None or price == 0:
        return SLICE
    span = min(bought(cap - committed(machines), price * count) - GRACE, SLICE)
    return span if span >= SHORTEST else None


def bought(dollars: Decimal, price_per_hour: Decimal) -> timedelta:
    """Return the whole milliseconds that so many dollars buy; rounding up would pass the cap."""
    return timedelta(milliseconds=math.floor(max(dollars, Decimal(0)) * 3_600_000 / price_per_hour))


def renew(
    connection: Connection,
    job: str,
    vm_id: str,
    cap: Decimal | None,
    now: datetime,
    *,
    is_over: bool = False,
) -> timedelta:
    """Reserve more time for a machine as far as the cap allows; returns the time it has left.

    A job that is over gets no more time: its machines are about to end.
    """
    vms.lock_job(connection, job)
    machines = vms.of_job(connection, job)
    vm = next(machine for machine in machines if machine.id == vm_id)
    wanted = vm.prepaid_until if is_over else now + SLICE
    if cap is not None and vm.price_per_hour > 0:
        free = bought(cap - committed(machines), vm.price_per_hour)
        wanted = min(wanted, vm.prepaid_until + free)
    until = max(wanted, vm.prepaid_until)
    vms.extend(connection, vm_id, until)
    return until - now
