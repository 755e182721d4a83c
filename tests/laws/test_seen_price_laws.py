"""What a machine costs whose price moves, and what is reserved for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from service import ledger
from service.offers import BillingTerms, SeenPrice, price_of_run
from tests.builders import NOW, vm

CEILING = Decimal("3.6")  # a tenth of a cent each second
EXACT = Decimal("1e-12")

spans = st.integers(0, 7200).map(lambda seconds: timedelta(seconds=seconds))
prices = st.integers(1, 360).map(lambda cents: Decimal(cents) / 100)


@st.composite
def seen(draw: st.DrawFn) -> tuple[SeenPrice, ...]:
    moments = sorted(draw(st.sets(st.integers(-600, 7200), min_size=1, max_size=6)))
    return tuple(SeenPrice(NOW + timedelta(seconds=at), draw(prices)) for at in moments)


def price_at(known: tuple[SeenPrice, ...], second: int) -> Decimal:
    now = NOW + timedelta(seconds=second)
    return [known[0], *(each for each in known if each.since <= now)][-1].price_per_hour


@given(seen(), st.integers(0, 3600), st.integers(0, 120))
def test_a_run_costs_the_sum_of_its_seconds(
    known: tuple[SeenPrice, ...], life: int, minimum: int
) -> None:
    terms = BillingTerms(CEILING, minimum=timedelta(seconds=minimum))
    found = price_of_run(terms, known, NOW, NOW + timedelta(seconds=life))
    expected = sum((price_at(known, s) for s in range(max(life, minimum))), Decimal(0)) / 3600
    assert abs(found - expected) <= EXACT


@given(prices, spans, spans)
def test_a_price_that_does_not_move_costs_what_it_says(
    price: Decimal, life: timedelta, minimum: timedelta
) -> None:
    terms = BillingTerms(price, minimum=minimum)
    known = tuple(SeenPrice(NOW + timedelta(seconds=n * 100), price) for n in range(3))
    assert abs(price_of_run(terms, known, NOW, NOW + life) - terms.price_of(life)) <= EXACT


@given(seen(), st.lists(spans, min_size=2), spans)
def test_a_run_never_gets_cheaper_and_never_dearer_than_on_demand(
    known: tuple[SeenPrice, ...], lives: list[timedelta], minimum: timedelta
) -> None:
    terms = BillingTerms(CEILING, minimum=minimum)
    costs = [price_of_run(terms, known, NOW, NOW + life) for life in sorted(lives)]
    assert all(before <= after for before, after in pairwise(costs))
    assert costs[-1] <= terms.price_of(max(lives)) + EXACT


@given(seen(), spans, st.sampled_from([timedelta(0), timedelta(minutes=1)]), prices)
def test_what_is_reserved_covers_each_price_that_may_follow_the_last_look(
    known: tuple[SeenPrice, ...], prepaid: timedelta, minimum: timedelta, later: Decimal
) -> None:
    machine = vm(
        1,
        market="spot",
        began_at=NOW,
        attempted_at=NOW,
        price_per_hour=CEILING,
        minimum=minimum.total_seconds(),
        prepaid_until=NOW + prepaid,
        prices=known,
    )
    assume(known[-1].since < machine.prepaid_until)
    reserved = ledger.committed_by_machine(machine)
    jump = SeenPrice(known[-1].since + timedelta(seconds=1), later)
    told_then = replace(machine, prices=(*known, jump))
    assert told_then.cost(machine.prepaid_until) <= reserved + EXACT
    looked = replace(machine, prices=(*known, replace(jump, since=machine.prepaid_until)))
    assert ledger.committed_by_machine(looked) <= reserved + EXACT, "a look frees money"
    ended = replace(machine, state="gone", ended_at=machine.prepaid_until)
    assert ended.cost(machine.prepaid_until) <= ledger.committed_by_machine(ended) + EXACT


@given(seen(), spans)
def test_what_was_never_started_costs_nothing(
    known: tuple[SeenPrice, ...], life: timedelta
) -> None:
    refused = vm(1, state="gone", refusal="sold out", ended_at=NOW + life, prices=known)
    assert refused.cost(NOW + 2 * life) == ledger.committed_by_machine(refused) == 0
