"""What every schema of the REST API is made of: the base of all answers, and money.

Pydantic models, because other programs read these documents. Seconds and samples are numbers,
money is a decimal string with its currency, times are RFC 3339 in UTC.
"""

from __future__ import annotations

from decimal import Decimal

from pydantic import BaseModel, ConfigDict

from scavenger.money import format_dollars


class View(BaseModel):
    """Base of every answer: frozen. Old clients ignore fields that newer controllers add.

    The controller builds a view from a value whose attributes have the names of the view's fields.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)


class MoneyView(View):
    """An exact amount of money."""

    amount: Decimal
    currency: str = "USD"

    def __str__(self) -> str:
        amount = format_dollars(float(self.amount))
        return amount if self.currency == "USD" else f"{amount.replace('$', '')} {self.currency}"
