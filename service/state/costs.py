"""What machines cost, by job, model, project, cloud or day; parts add up to the whole exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal, assert_never

from service import ledger
from service.db.costs import CostOwner
from service.db.vms import Vm

CostGrouping = Literal["job", "model", "project", "cloud", "day"]
# What a cloud may bill besides machines with their disks and public addresses.
NOT_INCLUDED = (
    "checkpoints and code that are stored in buckets, and requests to them",
    "traffic between zones, between regions and out of the cloud",
    "the computer and the database of the controller",
    "taxes, discounts, credits and commitments of your contract with the cloud",
)
SPOT_NOT_SEEN = (
    "changes of spot prices in the last minutes, which the clouds have not told yet: those machines"
    " are booked at the price seen last"
)


@dataclass(frozen=True, slots=True)
class CostSpan:
    """The span in which money was spent.

    Attributes:
        since: When it begins, not after its end; None for the beginning of time.
        until: When it ends.
    """

    since: datetime | None
    until: datetime


def divide_cost(
    machines: Sequence[Vm],
    by: CostGrouping,
    span: CostSpan,
    owners: Mapping[str, CostOwner],
) -> Mapping[str, Decimal]:
    """Return dollars spent within a span, by what each machine belongs to.

    Args:
        machines: Every machine that may have cost something.
        by: What they are divided by; days are those of UTC.
        span: When.
        owners: What each job belongs to.
    """
    found: dict[str, Decimal] = {}
    for vm in machines:
        for name, cost in parts_of(vm, by, span, owners):
            found[name] = found.get(name, Decimal(0)) + cost
    return found


def parts_of(
    vm: Vm, by: CostGrouping, span: CostSpan, owners: Mapping[str, CostOwner]
) -> Iterator[tuple[str, Decimal]]:
    """Yield what one machine cost, each part with the name it belongs to."""
    match by:
        case "job":
            yield vm.job, cost_within(vm, span)
        case "model":
            yield owners[vm.job].model_key, cost_within(vm, span)
        case "project":
            yield owners[vm.job].project, cost_within(vm, span)
        case "cloud":
            yield vm.cloud, cost_within(vm, span)
        case "day":
            yield from daily_costs(vm, span)
        case _:
            assert_never(by)


def daily_costs(vm: Vm, span: CostSpan) -> Iterator[tuple[str, Decimal]]:
    """Yield what one machine cost on each day in UTC on which it existed.

    What is billed at once, such as a first minute or a whole hour, counts on the day it begins.
    """
    began = vm.paid_from if span.since is None else max(vm.paid_from, span.since)
    spent = Decimal(0) if span.since is None else cost_until(vm, span.since)
    end = min(vm.ended_at or span.until, span.until)
    day = began.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    while day < end:
        following = day + timedelta(days=1)
        # The last part takes the rest, so that the parts are the whole.
        total = cost_until(vm, span.until if following >= end else following)
        yield f"{day:%Y-%m-%d}", total - spent
        spent, day = total, following


def cost_within(vm: Vm, span: CostSpan) -> Decimal:
    """Return dollars that one machine cost within a span."""
    total = cost_until(vm, span.until)
    return total if span.since is None else total - cost_until(vm, span.since)


def cost_until(vm: Vm, until: datetime) -> Decimal:
    """Return dollars that one machine cost up to a moment."""
    return ledger.booked([vm], until)


def missing_costs(machines: Sequence[Vm]) -> list[str]:
    """Say what a cloud may bill besides."""
    has_moving_price = any(vm.market == "spot" and vm.is_alive for vm in machines)
    return [*NOT_INCLUDED, *((SPOT_NOT_SEEN,) if has_moving_price else ())]
