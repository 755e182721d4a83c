"""What machines cost, by job, by cloud or by day; the parts add up to the whole exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal, assert_never

from service import ledger
from service.db.vms import Vm

# Amounts are rounded per machine, before they are added or subtracted, so no order of adding shows.
COST_RESOLUTION = Decimal("0.000000001")

CostGrouping = Literal["job", "cloud", "day"]


def divide_cost(machines: Sequence[Vm], by: CostGrouping, until: datetime) -> Mapping[str, Decimal]:
    """Return dollars spent up to a moment by job, cloud, or day in UTC."""
    found: dict[str, Decimal] = {}
    for vm in machines:
        for name, cost in parts_of(vm, by, until):
            found[name] = found.get(name, Decimal(0)) + cost
    return found


def parts_of(vm: Vm, by: CostGrouping, until: datetime) -> Iterator[tuple[str, Decimal]]:
    """Yield what one machine cost, each part with the name it belongs to."""
    match by:
        case "job":
            yield vm.job, cost_until(vm, until)
        case "cloud":
            yield vm.cloud, cost_until(vm, until)
        case "day":
            yield from daily_costs(vm, until)
        case _:
            assert_never(by)


def daily_costs(vm: Vm, until: datetime) -> Iterator[tuple[str, Decimal]]:
    """Yield what one machine cost on each day in UTC on which it existed.

    What is billed at once, such as a first minute or a whole hour, counts on the day it begins.
    """
    spent, end = Decimal(0), min(vm.ended_at or until, until)
    day = vm.paid_from.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    while day < end:
        following = day + timedelta(days=1)
        # The last part takes the rest, so that the parts are the whole.
        total = cost_until(vm, until if following >= end else following)
        yield f"{day:%Y-%m-%d}", total - spent
        spent, day = total, following


def cost_until(vm: Vm, until: datetime) -> Decimal:
    """Return dollars that one machine cost up to a moment."""
    return ledger.accrued([vm], until).quantize(COST_RESOLUTION)
