"""What every schema of the REST API is made of: the base of all answers, and money.

Pydantic models, because other programs read these documents. Seconds and samples are numbers,
money is a decimal string with its currency, times are RFC 3339 in UTC.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, PlainSerializer
from pydantic_core import PydanticCustomError

from scavenger.money import format_dollars

NUMBER = re.compile(r"\s*[+-]?[0-9._]+\s*")


def refuse_number(value: object) -> object:
    """Refuse a moment that is written as a number, which pydantic takes for seconds since 1970."""
    if isinstance(value, int | float) or (isinstance(value, str) and NUMBER.fullmatch(value)):
        raise PydanticCustomError("moment", "write a moment such as 2026-01-31T12:00:00Z")
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(refuse_number)]


def refuse_word(value: object) -> object:
    """Refuse a whole number that is written as a word or a truth value; 334.0 is one."""
    if isinstance(value, bool | str):
        raise PydanticCustomError("whole_number", "write a whole number such as 8")
    return value


class View(BaseModel):
    """Base of every answer: frozen. Old clients ignore fields that newer controllers add.

    The controller builds a view from a value whose attributes have the names of the view's fields.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)


# A decimal string without an exponent: str(Decimal("0E-9")) has one.
PlainDecimal = Annotated[
    Decimal, PlainSerializer(lambda amount: f"{amount:f}", return_type=str, when_used="json")
]


class MoneyView(View):
    """An exact amount of money."""

    amount: PlainDecimal
    currency: str = "USD"

    def __str__(self) -> str:
        amount = format_dollars(float(self.amount))
        return amount if self.currency == "USD" else f"{amount.replace('$', '')} {self.currency}"
