"""Costs by job, model, project, cloud and day: the parts add up exactly, and to what jobs show."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service import ledger
from service.db.costs import CostOwner
from service.db.vms import Vm
from service.offers import SeenPrice
from service.state.costs import CostGrouping, CostSpan, cost_within, daily_costs, divide_cost
from tests.builders import NOW, vm

MOMENTS = st.integers(0, 10 * 86_400_000).map(lambda ms: NOW + timedelta(milliseconds=ms))
PRICES = st.decimals("0.00001", 50, places=5)
SEEN = st.tuples(st.integers(-3600, 4 * 86400), PRICES)
GROUPINGS: tuple[CostGrouping, ...] = ("job", "model", "project", "cloud", "day")
OWNERS = {
    f"job_{number}": CostOwner(f"n{number}", f"key{number // 2}", f"project{number // 3}")
    for number in (1, 2, 3)
}
EARLY = NOW - timedelta(days=1)


@st.composite
def machines(draw: st.DrawFn) -> list[Vm]:
    return [draw(machine(number)) for number in range(draw(st.integers(0, 8)))]


@st.composite
def machine(draw: st.DrawFn, number: int) -> Vm:
    began = draw(MOMENTS)
    is_asked = draw(st.booleans())
    ended = draw(st.none() | st.integers(0, 4 * 86400).map(lambda s: began + timedelta(seconds=s)))
    return vm(
        number,
        job=f"job_{draw(st.integers(1, 3))}",
        cloud=draw(st.sampled_from(["local", "aws-frankfurt"])),
        price_per_hour=draw(PRICES),
        quantum=draw(st.sampled_from([0.0, 1.0, 3600.0])),
        minimum=draw(st.sampled_from([0.0, 60.0])),
        intended_at=began,
        began_at=began if draw(st.booleans()) else None,
        attempted_at=began if is_asked else None,
        refusal=draw(st.sampled_from([None, None, "sold out"])),
        ended_at=ended,
        prices=tuple(
            SeenPrice(began + timedelta(seconds=since), price)
            for since, price in sorted(draw(st.lists(SEEN, max_size=4)))
        ),
    )


@st.composite
def spans(draw: st.DrawFn) -> CostSpan:
    since, until = sorted((draw(MOMENTS), draw(MOMENTS)))
    return CostSpan(draw(st.sampled_from([None, since])), until)


@given(machines(), spans())
def test_the_parts_of_each_division_add_up_to_the_same_whole(
    existed: list[Vm], span: CostSpan
) -> None:
    whole = sum((cost_within(each, span) for each in existed), Decimal(0))
    for by in GROUPINGS:
        assert sum(divide_cost(existed, by, span, OWNERS).values(), Decimal(0)) == whole
    for job, cost in divide_cost(existed, "job", CostSpan(None, span.until), {}).items():
        own = [each for each in existed if each.job == job]
        assert cost == ledger.booked(own, span.until)  # what the page of the job shows
        exactly = ledger.accrued(own, span.until)
        assert abs(cost - exactly) <= ledger.MONEY_RESOLUTION * len(own) / 2


@given(machines(), MOMENTS, MOMENTS)
def test_what_two_spans_cost_that_follow_each_other_is_what_both_cost_together(
    existed: list[Vm], one: datetime, other: datetime
) -> None:
    middle, until = sorted((one, other))
    for by in GROUPINGS:
        parts = [CostSpan(None, middle), CostSpan(middle, until), CostSpan(None, until)]
        first, second, both = (divide_cost(existed, by, span, OWNERS) for span in parts)
        names = {*first, *second, *both}
        added = {n: first.get(n, Decimal(0)) + second.get(n, Decimal(0)) for n in names}
        if by != "day":  # what is billed at once counts on the day on which a span begins
            assert added == {name: both.get(name, Decimal(0)) for name in names}
        assert sum(added.values(), Decimal(0)) == sum(both.values(), Decimal(0))


@given(machine(1), MOMENTS)
@example(vm(1, minimum=60.0, attempted_at=NOW, began_at=NOW, ended_at=NOW), NOW)
def test_what_is_reserved_is_not_negative_and_nothing_once_a_machine_is_gone(
    existed: Vm, until: datetime
) -> None:
    held = ledger.reserved([existed], until)
    assert held >= 0
    # In the very moment in which it is asked for nothing is booked yet, not even its minimum.
    is_over = existed.ended_at is not None and existed.paid_from < until >= existed.ended_at
    if is_over and not existed.prices:
        assert held == 0


@given(machine(1), spans())
@example(
    vm(1, began_at=NOW, ended_at=NOW + timedelta(days=3)), CostSpan(None, NOW + timedelta(days=9))
)
def test_no_day_costs_less_than_nothing_or_lies_outside_of_the_machines_life(
    existed: Vm, span: CostSpan
) -> None:
    days = dict(daily_costs(existed, span))
    assert all(cost >= 0 for cost in days.values())
    for day in days:
        begin = datetime.fromisoformat(day).replace(tzinfo=UTC)
        assert begin < min(existed.ended_at or span.until, span.until)
        assert begin + timedelta(days=1) > max(existed.paid_from, span.since or EARLY)


@given(st.integers(0, 86_399), st.integers(1, 5 * 86_400), PRICES)
def test_a_machine_that_is_billed_exactly_costs_each_day_its_seconds(
    begin: int, span: int, price: Decimal
) -> None:
    midnight = datetime(2026, 3, 1, tzinfo=UTC)
    began = midnight + timedelta(seconds=begin)
    existed = vm(
        1,
        price_per_hour=price,
        began_at=began,
        attempted_at=began,
        ended_at=began + timedelta(seconds=span),
    )
    for number, (day, cost) in enumerate(
        daily_costs(existed, CostSpan(None, midnight + timedelta(days=30)))
    ):
        start, end = number * 86_400, (number + 1) * 86_400
        seconds = min(begin + span, end) - max(begin, start)
        assert day == f"{midnight + timedelta(days=number):%Y-%m-%d}"
        assert abs(cost - price * seconds / 3600) <= 2 * ledger.MONEY_RESOLUTION


@pytest.mark.parametrize(
    ("quantum", "minimum", "expected"),
    [
        (0.0, 0.0, {"2026-03-01": "0.5", "2026-03-02": "0.5"}),
        # Billed by two hours from half past eleven: the day of the start pays them.
        (7200.0, 0.0, {"2026-03-01": "2", "2026-03-02": "0"}),
        (0.0, 7200.0, {"2026-03-01": "2", "2026-03-02": "0"}),
    ],
)
def test_what_is_billed_at_once_counts_on_the_day_it_begins(
    quantum: float, minimum: float, expected: dict[str, str]
) -> None:
    began = datetime(2026, 3, 1, 23, 30, tzinfo=UTC)
    existed = vm(
        1,
        price_per_hour=Decimal(1),
        quantum=quantum,
        minimum=minimum,
        began_at=began,
        attempted_at=began,
        ended_at=began + timedelta(hours=1),
    )
    found = dict(daily_costs(existed, CostSpan(None, began + timedelta(days=9))))
    assert found == {day: Decimal(cost) for day, cost in expected.items()}
