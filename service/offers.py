"""Offers: where one kind of machine can be rented, and what it is billed.

An offer is fixed in the row of the intent to launch, before any cloud is called. With EC2 a client
token is idempotent per zone, and with Google a name is unique per zone: the same launch key in
another zone would start a second machine. So falling back to another place takes another key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal

Market = Literal["on_demand", "spot"]


@dataclass(frozen=True, slots=True)
class BillingTerms:
    """What a machine is billed.

    Attributes:
        price_per_hour: Dollars per hour, the most it may cost: a spot machine is reserved at the
            on-demand price.
        quantum: What is billed at once, such as an hour; nothing bills exactly.
        minimum: What is billed at least, however soon the machine ends.
    """

    price_per_hour: Decimal
    quantum: timedelta = timedelta(0)
    minimum: timedelta = timedelta(0)

    def billed(self, span: timedelta) -> timedelta:
        """Return a span as it is billed: at least the minimum, in whole quanta."""
        started = max(span, self.minimum, timedelta(0))
        return -(-started // self.quantum) * self.quantum if self.quantum else started

    def price_of(self, span: timedelta) -> Decimal:
        """Return the dollars of a span."""
        return self.price_per_hour * Decimal(self.billed(span).total_seconds()) / 3600


@dataclass(frozen=True, slots=True)
class SeenPrice:
    """What a spot machine cost from a moment on, as its cloud showed it.

    Attributes:
        since: From when on, until the next one.
        price_per_hour: Dollars per hour.
    """

    since: datetime
    price_per_hour: Decimal


def price_of_run(
    terms: BillingTerms, seen: Sequence[SeenPrice], began: datetime, ended: datetime
) -> Decimal:
    """Return the dollars of a run whose price moved.

    Args:
        terms: What it is billed; its price is the most that counts, and all where none was seen.
        seen: Prices in order. The first also counts before its moment, and the last goes on.
        began: When the machine was first asked for.
        ended: When it was gone; the minimum and the quantum may add to that.
    """
    end = began + terms.billed(ended - began)
    if not seen or terms.quantum:
        return terms.price_of(ended - began)
    starts = [began, *(max(each.since, began) for each in seen[1:])]
    stops = [*starts[1:], end]
    dollars = Decimal(0)
    for each, start, stop in zip(seen, starts, stops, strict=True):
        seconds = max((min(stop, end) - start).total_seconds(), 0.0)
        dollars += min(each.price_per_hour, terms.price_per_hour) * Decimal(seconds) / 3600
    return dollars


@dataclass(frozen=True, slots=True)
class Offer:
    """One place to rent one kind of machine.

    Attributes:
        cloud: Name of the entry in the clouds file.
        zone: The cloud's word for where in its region.
        machine_type: The cloud's word for the size.
        market: Whether the cloud may take the machine back.
        image: The cloud's word for what the machine boots.
        terms: What it is billed.
    """

    cloud: str
    zone: str
    machine_type: str
    market: Market
    image: str
    terms: BillingTerms
