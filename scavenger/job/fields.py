"""Base class and field types of the job document: money, prices, durations, ranges and lists.

Each quantity is a pydantic type: it is read from text with a unit and written back as text that
reads as the same value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    Strict,
    TypeAdapter,
)

from scavenger.job.messages import show_value

MAX_DURATION = 10 * 365 * 24 * 3600.0
MIN_DURATION = 0.001

_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,24})?"
_BARE = re.compile(rf" *-?{_NUMBER} *")
_MONEY = re.compile(rf" *(?P<amount>-?{_NUMBER}) *(?P<currency>[A-Za-z]{{3}})(?P<per>/h)? *")
_DURATION = re.compile(
    rf" *(?:({_NUMBER}) *h)? *(?:({_NUMBER}) *m)? *(?:({_NUMBER}) *s)? *(?:({_NUMBER}) *ms)? *"
)
_RANGE = re.compile(r" *([0-9]{1,12}) *\.\. *([0-9]{1,12}) *")
# What a schema can say of them; what is out of range is refused besides.
_MONEY_TEXT = Annotated[str, Field(pattern=rf"^ *{_NUMBER} *USD *$")]
_PRICE_TEXT = Annotated[str, Field(pattern=rf"^ *{_NUMBER} *USD/h *$")]
_DURATION_TEXT = Annotated[str, Field(pattern=f"^{_DURATION.pattern}$")]
RANGE_TEXT = Annotated[str, Field(pattern=f"^{_RANGE.pattern}$")]
_UNITS = tuple(map(Decimal, ("3600", "60", "1", "0.001")))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Whole numbers from low to high, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(
                f"range {self} is empty: write the low end first, e.g. {self.high}..{self.low}"
            )

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


def doublings(low: int, high: int) -> tuple[int, ...]:
    """Return the low end of a range, every doubling of it below the high end, and the high end.

    >>> doublings(64, 400)
    (64, 128, 256, 400)
    """
    between = (low << times for times in range(high.bit_length()))
    return (*(number for number in between if number < high), high)


def read_money(value: object) -> Decimal:
    """Read an amount of dollars, at least 0, such as ``3.40 USD``.

    Raises:
        ValueError: It is no amount of money; the message says what to write.
    """
    return _read_amount(value, per=None, example="3.40 USD")


def read_price(value: object) -> Decimal:
    """Read a price in dollars per hour, at least 0, such as ``0.13402 USD/h``.

    Raises:
        ValueError: It is no price per hour; the message says what to write.
    """
    return _read_amount(value, per="/h", example="0.13402 USD/h")


def _read_amount(value: object, *, per: str | None, example: str) -> Decimal:
    _refuse_bare_number(value, example)
    match = _MONEY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f'{show_value(value)} is no amount of money: write e.g. "{example}"')
    if match["currency"] != "USD":
        raise ValueError(
            f'{show_value(value)} is not in USD, the only currency: write e.g. "{example}"'
        )
    if match["per"] != per:
        asked = "a price per hour" if per else "an amount, not a price per hour"
        raise ValueError(f'{show_value(value)} must be {asked}: write e.g. "{example}"')
    if match["amount"].startswith("-"):
        raise ValueError(f'{show_value(value)} is below zero: write e.g. "{example}"')
    return Decimal(match["amount"])


def _refuse_bare_number(value: object, example: str) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number or (isinstance(value, str) and _BARE.fullmatch(value)):
        raise ValueError(f'{show_value(value)} has no unit: write a unit, e.g. "{example}"')


def format_money(amount: Decimal) -> str:
    """Write dollars exactly, with two decimals at least.

    >>> format_money(Decimal("3.4"))
    '3.40 USD'
    """
    whole, _, fraction = f"{amount.normalize():f}".partition(".")
    return f"{whole}.{fraction:0<2} USD"


def format_price(price_per_hour: Decimal) -> str:
    """Write dollars per hour exactly.

    >>> format_price(Decimal("0.13402"))
    '0.13402 USD/h'
    """
    return f"{format_money(price_per_hour)}/h"


def read_duration(value: object) -> float:
    """Read a duration in seconds, from a millisecond to ten years, such as ``3h12m`` or ``500ms``.

    Raises:
        ValueError: It is no duration; the message says what to write.
    """
    _refuse_bare_number(value, "90s")
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None or not any(match.groups()):
        raise ValueError(
            f"{show_value(value)} is no duration: "
            "write hours, minutes and seconds in this order, e.g. 3h12m, 90s or 500ms"
        )
    parts = zip(match.groups(), _UNITS, strict=True)
    seconds = float(sum(Decimal(number) * unit for number, unit in parts if number))
    if not MIN_DURATION <= seconds <= MAX_DURATION:
        raise ValueError(f"{show_value(value)} is out of range: write 1ms to 87600h")
    return seconds


def format_duration(seconds: float) -> str:
    """Write a duration for people, rounded to what matters.

    Raises:
        ValueError: ``seconds`` is negative or not finite.

    >>> [format_duration(seconds) for seconds in (0.25, 43.21, 300, 3900)]
    ['250ms', '43.2s', '5m00s', '1h05m']
    """
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"seconds must be finite and not negative, got {seconds}")
    if round(seconds * 1000) < 1000:
        return f"{round(seconds * 1000)}ms"
    if round(seconds * 10) < 600:
        return f"{seconds:.1f}s"
    if round(seconds) < 3600:
        return "{}m{:02}s".format(*divmod(round(seconds), 60))
    return "{}h{:02}m".format(*divmod(round(seconds / 60), 60))


def exact_duration(seconds: float) -> str:
    """Write a duration so that it reads as the same number.

    >>> exact_duration(11520.5)
    '3h12m0.5s'
    """
    minutes, second = divmod(Decimal(repr(seconds)), 60)
    hour, minute = divmod(minutes, 60)
    parts = ((hour, "h"), (minute, "m"), (second, "s"))
    return "".join(f"{number.normalize():f}{unit}" for number, unit in parts if number)


def read_range(value: object, example: str = "4..24") -> Bounds:
    """Read a range of whole numbers such as ``4..24``.

    Raises:
        ValueError: It is no range, or an empty one; the message says what to write.
    """
    match = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{show_value(value)} is no range: write e.g. {example}")
    return Bounds(int(match[1]), int(match[2]))


DollarAmount = Annotated[
    Decimal,
    PlainValidator(read_money, json_schema_input_type=_MONEY_TEXT),
    PlainSerializer(format_money, return_type=str, when_used="json"),
]
PricePerHour = Annotated[
    Decimal,
    PlainValidator(read_price, json_schema_input_type=_PRICE_TEXT),
    PlainSerializer(format_price, return_type=str, when_used="json"),
]
Duration = Annotated[
    float,
    PlainValidator(read_duration, json_schema_input_type=_DURATION_TEXT),
    PlainSerializer(exact_duration, return_type=str, when_used="json"),
]
IntRange = Annotated[
    Bounds,
    PlainValidator(read_range, json_schema_input_type=RANGE_TEXT),
    PlainSerializer(str, return_type=str, when_used="json"),
]


class SpecModel(BaseModel):
    """Base of every part of the document: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


StrictText = Annotated[str, Strict()]


def require_value(value: object) -> object:
    """Refuse a key without a value, so that a limit left blank is not read as no limit."""
    if value is None:
        raise ValueError("has no value")
    return value


def require_nonzero(amount: Decimal) -> Decimal:
    """Return an amount as it is; raises ValueError for nothing."""
    if not amount:
        raise ValueError(f"must be above zero, got {amount}")
    return amount


def closest_name(key: object, names: Sequence[str]) -> str | None:
    """Return the name that was probably meant, if one is close."""
    return next(iter(get_close_matches(str(key)[:80].lower(), names, n=1)), None)


def literal_type(names: Iterable[str]) -> Any:
    """Return the type of one of these words, for the schema of a field that a registry checks."""
    return Literal.__getitem__(tuple(names))


MAX_CONFIGURATIONS = 400
RangeOrList = Bounds | tuple[int, ...]


def read_range_or_list(
    value: object, numbers: TypeAdapter[list[int]], *, example: str
) -> RangeOrList:
    """Read a range, a whole number or a list of them, which comes out ascending."""
    if isinstance(value, str):
        bounds = read_range(value, example=example)
        numbers.validate_python([bounds.low])
        numbers.validate_python([bounds.high])
        return bounds
    if isinstance(value, int) and not isinstance(value, bool):
        return tuple(numbers.validate_python([value]))
    if not isinstance(value, (list, tuple)):
        raise ValueError(
            f"must be a range, a whole number or a list of them, got {show_value(value)}: "
            f"write e.g. {example}"
        )
    if not 0 < len(value) <= MAX_CONFIGURATIONS:
        raise ValueError(f"must list 1 to {MAX_CONFIGURATIONS} whole numbers, got {len(value)}")
    return tuple(sorted(set(numbers.validate_python(value))))


WrittenRangeOrList = PlainSerializer(
    lambda choice: str(choice) if isinstance(choice, Bounds) else list(choice),
    return_type=str | list[int],
    when_used="json",
)
