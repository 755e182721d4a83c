"""Which prices are not believed, and what a person reads."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from scavenger.errors import InvalidDocument
from scavenger.offline.tables.price_rows import read_price_rows
from scavenger.schemas.prices import PriceRow, PriceView
from service.errors import UnknownPrice
from service.prices import PriceBook, PricedRegion, find_refusal, newest_prices, to_price
from tests.builders import NOW


def price(amount: str, **changes: object) -> PriceView:
    facts = {"provider": "aws", "region": "eu-central-1", "item": "m7i.large", **changes}
    row = PriceRow.model_validate({**facts, "price": Decimal(amount)})
    return to_price(row, "imported", NOW)


@pytest.mark.parametrize(
    ("told", "known", "words"),
    [
        ("0.1", None, None),
        ("0.1", "0.1", None),
        ("1", "0.1", None),
        ("0.01", "0.1", None),
        ("1.01", "0.1", "1.01 USD is more than 10 times away from what is known; 0.1 USD stays"),
        ("0.0099", "0.1", "more than 10 times away"),
        ("0", None, "zero is no price"),
        ("0", "0.1", "zero is no price; 0.1 USD stays"),
        ("-0.1", "0.1", "a negative amount is no price"),
        ("NaN", "0.1", "the price is not finite; 0.1 USD stays"),
        ("Infinity", None, "the price is not finite"),
        ("1e30", None, "out of range"),
        ("1e-30", None, "out of range"),
        ("0.1000000000000000000000000000000001", None, "out of range"),
    ],
)
def test_a_price_that_is_not_plausible_is_refused(
    told: str, known: str | None, words: str | None
) -> None:
    why = find_refusal(price(told), None if known is None else price(known), NOW)
    if words is None:
        assert why is None
    else:
        assert why is not None
        assert words in why
        assert "m7i.large in aws eu-central-1 (on_demand, machine_hour)" in why


def test_a_price_of_tomorrow_would_never_be_replaced() -> None:
    later = price("0.1").model_copy(update={"as_of": NOW + timedelta(days=2)})
    assert "2026-01-03 has not come yet" in str(find_refusal(later, None, NOW))


BOOK = PriceBook(
    newest_prices(
        [
            price("0.2"),
            price("0.1", item="gp3", unit="disk_gib_month"),
            price("0.03", item="x2-custom", unit="vcpu_hour"),
        ]
    )
)


@pytest.mark.parametrize(
    ("where", "machine_type", "words"),
    [
        (PricedRegion("aws", "eu-central-1"), "m7i.huge", "no price of m7i.huge in aws eu-central"),
        (PricedRegion("aws", "us-east-1"), "m7i.large", "no price of m7i.large in aws us-east-1"),
        (PricedRegion("aws", "eu-central-1", "gp4", 8), "m7i.large", "gp4 (disk_gib_month)"),
        (
            PricedRegion("aws", "eu-central-1", has_public_address=True),
            "m7i.large",
            "public-ipv4 (address_hour)",
        ),
        (PricedRegion("aws", "eu-central-1"), "x2-custom-2-4096", "x2-custom (gib_hour)"),
        (PricedRegion(), "local", "no price of local in this cloud"),
    ],
)
def test_what_has_no_price_is_named_with_the_command_that_helps(
    where: PricedRegion, machine_type: str, words: str
) -> None:
    with pytest.raises(UnknownPrice) as caught:
        BOOK.price_per_hour(where, machine_type)
    assert words in str(caught.value)
    assert "scavenger prices import FILE" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("provider,region,item\naws,r,x", "line 1, column 1: column price is missing"),
        ("provider,region,item,price,cost\naws,r,x,1,2", 'unknown column "cost"'),
        ("provider,region,item,price\naws,r,x,cheap", 'line 2, column 9: price: "cheap" is no pri'),
        ("provider,region,item,price\naws,,x,1", "line 2, column 5: region"),
        ("provider,region,item,price,as_of\naws,r,x,1,soon", '"soon" is no date'),
        ("provider,region,item,price,unit\naws,r,x,1,day", "line 2, column 11: unit"),
        ("provider,region,item,price,vcpus\naws,r,x,1,-2", "must not be below 0"),
    ],
)
def test_a_wrong_table_is_refused_with_line_and_column(text: str, words: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        read_price_rows(text.splitlines(keepends=True))
    assert words in str(caught.value)
