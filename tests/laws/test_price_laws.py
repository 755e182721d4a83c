"""Prices: what is imported comes back, what is not believed changes nothing, the newest holds."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from scavenger.offline.tables.price_rows import (
    OPTIONAL_PRICE_COLUMNS,
    REQUIRED_PRICE_COLUMNS,
    read_price_rows,
)
from scavenger.schemas.prices import PriceRow, PriceView
from service.prices import (
    MAX_PRICE_JUMP,
    PriceBook,
    PricedRegion,
    find_refusal,
    judge_update,
    key_of,
    newest_prices,
    rank_of,
    shipped_prices,
    to_price,
)
from tests.builders import NOW

NAMES = st.sampled_from(["m7i.large", "m7i.xlarge", "gp3"])
AMOUNTS = st.decimals("0.0001", "90", places=6)
MOMENTS = st.integers(0, 60).map(lambda days: NOW - timedelta(days=days))
SIZES = st.none() | st.integers(1, 4096).map(lambda quarters: quarters / 4)
ROWS = st.builds(
    PriceRow,
    provider=st.sampled_from(["aws", "google"]),
    region=st.sampled_from(["eu-central-1", "europe-west1"]),
    item=NAMES,
    unit=st.sampled_from(["machine_hour", "disk_gib_month"]),
    market=st.sampled_from(["on_demand", "spot"]),
    price=AMOUNTS,
    vcpus=SIZES,
    memory_gib=SIZES,
    accelerator=st.sampled_from(["", "nvidia-l4"]),
    accelerators=st.integers(0, 8),
    as_of=MOMENTS,
)
PRICES = st.builds(to_price, ROWS, st.sampled_from(["shipped", "imported", "cloud"]), st.just(NOW))


@given(st.lists(ROWS, min_size=1, max_size=20))
def test_a_table_that_is_written_and_read_says_the_same(rows: list[PriceRow]) -> None:
    text = io.StringIO()
    columns = [*REQUIRED_PRICE_COLUMNS, *OPTIONAL_PRICE_COLUMNS]
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    for row in rows:
        told = {**row.model_dump(mode="json"), "price": str(row.price)}
        writer.writerow({**told, "accelerators": row.accelerators or ""})
    assert list(read_price_rows(text.getvalue().splitlines(keepends=True))) == rows


@given(AMOUNTS, st.decimals(MAX_PRICE_JUMP, 1000, places=3), st.booleans())
def test_a_jump_is_refused_and_a_step_is_not(amount: Decimal, factor: Decimal, is_up: bool) -> None:
    known = price(amount)
    beyond = factor * Decimal("1.01")
    far = price(round(amount * beyond if is_up else amount / beyond, 12))
    why = find_refusal(far, known, NOW)
    assert why is not None
    assert "stays" in why
    assert find_refusal(far, None, NOW) is None, "the first is not compared"
    near = price(amount * MAX_PRICE_JUMP if is_up else amount / MAX_PRICE_JUMP)
    assert find_refusal(near, known, NOW) is None


@given(st.lists(PRICES, max_size=12), st.lists(PRICES, max_size=12))
def test_each_price_told_holds_or_is_refused_or_is_older(
    before: list[PriceView], told: list[PriceView]
) -> None:
    known = newest_prices(before)
    update = judge_update(told, known, NOW)
    after = newest_prices([*known.values(), *update.accepted])
    for key, held in after.items():
        assert held in before or held in told
        if key in known:
            assert rank_of(held) >= rank_of(known[key])
    for each in told:
        is_older = rank_of(each) <= rank_of(after[key_of(each)]) if key_of(each) in after else False
        assert is_older or update.refused


@given(st.lists(PRICES, max_size=12), st.randoms())
def test_what_holds_is_the_newest_of_each_in_any_order(prices: list[PriceView], rng) -> None:  # type: ignore[no-untyped-def]
    held = newest_prices(prices)
    assert set(held) == {key_of(each) for each in prices}
    assert all(rank_of(held[key_of(each)]) >= rank_of(each) for each in prices)
    shuffled = list(prices)
    rng.shuffle(shuffled)
    ranks = {key: rank_of(each) for key, each in newest_prices(shuffled).items()}
    assert ranks == {key: rank_of(each) for key, each in held.items()}


@given(
    st.integers(1, 16).map(lambda half: 2 * half),
    st.integers(1, 512).map(lambda quarters: 256 * quarters),
    st.integers(0, 1000),
    st.booleans(),
)
def test_a_machine_costs_its_parts(vcpus: int, mib: int, disk: int, is_public: bool) -> None:
    book = PriceBook(newest_prices(shipped_prices()))
    where = PricedRegion("google", "us-central1", "pd-balanced", disk, is_public)
    told = book.price_per_hour(where, f"e2-custom-{vcpus}-{mib}")
    machine = Decimal("0.02181159") * vcpus + Decimal("0.00292353") * mib / 1024
    beside = Decimal("0.1") * disk / 730 + (Decimal("0.005") if is_public else 0)
    assert 0 <= told - machine - beside < Decimal("0.00000003")


def test_the_shipped_table_is_believed_and_holds_each_item_once() -> None:
    shipped = shipped_prices()
    update = judge_update(shipped, {}, datetime.now(UTC))
    assert update.refused == ()
    assert len(update.accepted) == len(shipped) > 100
    machines = [each for each in shipped if each.unit == "machine_hour"]
    assert all(each.vcpus and each.memory_gib for each in machines)
    assert all(bool(each.accelerator) == bool(each.accelerators) for each in machines)


def price(amount: Decimal) -> PriceView:
    row = PriceRow(provider="aws", region="r", item="m7i.large", price=amount)
    return to_price(row, "imported", NOW)
