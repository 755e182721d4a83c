import re
from decimal import Decimal

import pytest
from pydantic import TypeAdapter, ValidationError

from scavenger.job.fields import (
    Bounds,
    DollarAmount,
    Duration,
    IntRange,
    PricePerHour,
    exact_duration,
    format_duration,
    format_money,
    format_price,
    read_duration,
    read_money,
    read_price,
    read_range,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3h12m", 11520.0),
        ("90s", 90.0),
        ("1h 5m", 3900.0),
        ("500ms", 0.5),
        (" 1.5h ", 5400.0),
        ("1h2m3s4ms", 3723.004),
        ("1ms", 0.001),
        ("87600h", 315360000.0),
    ],
)
def test_durations_are_read_in_seconds(text, seconds):
    assert read_duration(text) == seconds


NO_DURATION = (
    "is no duration: write hours, minutes and seconds in this order, e.g. 3h12m, 90s or 500ms"
)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (90, '90 has no unit: write a unit, e.g. "90s"'),
        (1.5, '1.5 has no unit: write a unit, e.g. "90s"'),
        ("90", '"90" has no unit: write a unit, e.g. "90s"'),
        ("5m1h", f'"5m1h" {NO_DURATION}'),
        ("", f'"" {NO_DURATION}'),
        ("-5s", f'"-5s" {NO_DURATION}'),
        ("1:30", f'"1:30" {NO_DURATION}'),
        ("2 days", f'"2 days" {NO_DURATION}'),
        ("٣s", f'"٣s" {NO_DURATION}'),
        (True, f"true {NO_DURATION}"),
        (None, f"nothing {NO_DURATION}"),
        ({"s": 1}, f"a mapping {NO_DURATION}"),
        ("0s", '"0s" is out of range: write 1ms to 87600h'),
        ("999999999999h", '"999999999999h" is out of range: write 1ms to 87600h'),
    ],
)
def test_a_wrong_duration_says_what_to_write(value, message):
    with pytest.raises(ValueError) as caught:
        read_duration(value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "amount"), [("3.40 USD", "3.40"), ("3USD", "3"), ("0 USD", "0"), ("0.013 USD", ".013")]
)
def test_money_is_read_exactly(text, amount):
    assert read_money(text) == Decimal(amount)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3.4, '3.4 has no unit: write a unit, e.g. "3.40 USD"'),
        ("3.40", '"3.40" has no unit: write a unit, e.g. "3.40 USD"'),
        ("3 EUR", '"3 EUR" is not in USD, the only currency: write e.g. "3.40 USD"'),
        ("3 usd", '"3 usd" is not in USD, the only currency: write e.g. "3.40 USD"'),
        ("$3", '"$3" is no amount of money: write e.g. "3.40 USD"'),
        ("1,000 USD", '"1,000 USD" is no amount of money: write e.g. "3.40 USD"'),
        ("NaN USD", '"NaN USD" is no amount of money: write e.g. "3.40 USD"'),
        ("-3 USD", '"-3 USD" is below zero: write e.g. "3.40 USD"'),
        (
            "3 USD/h",
            '"3 USD/h" must be an amount, not a price per hour: write e.g. "3.40 USD"',
        ),
        ("x" * 100, f'"{"x" * 79}…" is no amount of money: write e.g. "3.40 USD"'),
    ],
)
def test_wrong_money_says_what_to_write(value, message):
    with pytest.raises(ValueError) as caught:
        read_money(value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.1, '0.1 has no unit: write a unit, e.g. "0.13402 USD/h"'),
        ("0.1 USD", '"0.1 USD" must be a price per hour: write e.g. "0.13402 USD/h"'),
        ("1 GBP/h", '"1 GBP/h" is not in USD, the only currency: write e.g. "0.13402 USD/h"'),
    ],
)
def test_a_wrong_price_says_what_to_write(value, message):
    with pytest.raises(ValueError) as caught:
        read_price(value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("4..1", "range 4..1 is empty: write the low end first, e.g. 1..4"),
        ("4-24", '"4-24" is no range: write e.g. 4..24'),
        ("4..", '"4.." is no range: write e.g. 4..24'),
        (4, "4 is no range: write e.g. 4..24"),
    ],
)
def test_a_wrong_range_says_what_to_write(value, message):
    with pytest.raises(ValueError) as caught:
        read_range(value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.05, "50ms"),
        (0.9996, "1.0s"),
        (43.21, "43.2s"),
        (59.96, "1m00s"),
        (3599.7, "1h00m"),
        (3900, "1h05m"),
        (11520, "3h12m"),
    ],
)
def test_a_duration_is_rounded_for_people(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_what_is_no_duration_is_not_formatted(seconds):
    with pytest.raises(ValueError, match="seconds must be finite and not negative"):
        format_duration(seconds)


def test_money_keeps_every_digit_and_two_decimals():
    assert format_money(Decimal(3)) == "3.00 USD"
    assert format_money(Decimal("1E+3")) == "1000.00 USD"
    assert format_price(Decimal("0.13402")) == "0.13402 USD/h"


def test_an_exact_duration_keeps_every_digit():
    assert exact_duration(3723.004) == "1h2m3.004s"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (DollarAmount, "3.40 USD", Decimal("3.40")),
        (PricePerHour, "0.13402 USD/h", Decimal("0.13402")),
        (Duration, "3h12m", 11520.0),
        (IntRange, "4..24", Bounds(4, 24)),
    ],
)
def test_a_quantity_is_a_pydantic_type(kind, text, value):
    adapter = TypeAdapter(kind)
    assert adapter.validate_python(text) == value
    assert adapter.dump_python(value, mode="json") == text
    schema = adapter.json_schema()
    assert schema == {"type": "string", "pattern": schema["pattern"]}
    assert re.search(schema["pattern"], text)
    assert not re.search(schema["pattern"], f"{text}!")
    with pytest.raises(ValidationError):
        adapter.validate_python(3)
