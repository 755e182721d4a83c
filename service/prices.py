"""Prices of what clouds rent out: which of two holds, which is believed, what a machine costs.

A price is that of one item: a machine type, a vCPU or a GiB of a family of custom sizes, a kind of
disk, or a public address. What a cloud says is not believed blindly: a wrong unit would let the
planner choose machines that cost a hundred times as much.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import ROUND_UP, Decimal
from functools import cache
from pathlib import Path

from scavenger.offline.tables.price_rows import read_price_rows
from scavenger.schemas.prices import PriceRow, PriceUnit, PriceView
from service.errors import UnknownPrice
from service.offers import Market

SHIPPED_PRICES = Path(__file__).parent / "clouds" / "prices.csv"
HOURS_PER_MONTH = 730  # as both clouds turn a month into hours
PUBLIC_ADDRESS = "public-ipv4"
UNITS_BESIDE: tuple[PriceUnit, ...] = ("disk_gib_month", "address_hour")  # beside a machine
MAX_PRICE_JUMP = 10
MAX_PRICE, MIN_PRICE, MAX_PRICE_DIGITS = Decimal(100_000), Decimal("0.00000001"), 24
MAX_CLOCK_DIFFERENCE = timedelta(days=1)
# Of prices of the same moment, the first is believed.
SOURCE_RANKS = {"imported": 2, "cloud": 1, "shipped": 0}
CUSTOM_TYPE = re.compile(r"(?P<family>[a-z0-9]+-custom)-(?P<vcpus>[0-9]{1,3})-(?P<mib>[0-9]{3,7})")

PriceKey = tuple[str, str, str, str, str]


@dataclass(frozen=True, slots=True)
class PricedRegion:
    """Where the prices of a cloud's machines are found, and what is billed beside each machine.

    Attributes:
        provider: As in the clouds file.
        region: The cloud's word.
        disk: Kind of the machine's disk, the cloud's word; empty where none is billed.
        disk_gib: Its size.
        has_public_address: Whether the machine has one.
    """

    provider: str = ""
    region: str = ""
    disk: str = ""
    disk_gib: int = 0
    has_public_address: bool = False


def key_of(price: PriceView) -> PriceKey:
    """Return what a price is the price of."""
    return price.provider, price.region, price.item, price.unit, price.market


def rank_of(price: PriceView) -> tuple[datetime, int]:
    """Return by what a price is believed in place of another: its moment, then its source."""
    return price.as_of, SOURCE_RANKS[price.source]


def newest_prices(prices: Iterable[PriceView]) -> dict[PriceKey, PriceView]:
    """Return the price that holds for each item."""
    found: dict[PriceKey, PriceView] = {}
    for price in prices:
        known = found.get(key_of(price))
        if known is None or rank_of(price) >= rank_of(known):
            found[key_of(price)] = price
    return found


def find_refusal(price: PriceView, known: PriceView | None, now: datetime) -> str | None:
    """Say in one sentence why a price is not believed; None where it is.

    Args:
        price: The new one.
        known: The one it would replace; None if it is the first.
        now: The present moment.
    """
    name = f"{price.item} in {price.provider} {price.region} ({price.market}, {price.unit})"
    kept = "" if known is None else f"; {format_usd(known.price)} stays"
    amount = price.price
    if not amount.is_finite():
        return f"{name}: the price is not finite{kept}"
    if amount <= 0:
        return f"{name}: {'zero' if amount == 0 else 'a negative amount'} is no price{kept}"
    if len(amount.as_tuple().digits) > MAX_PRICE_DIGITS or not MIN_PRICE <= amount <= MAX_PRICE:
        return f"{name}: the price is out of range: write up to {MAX_PRICE} USD{kept}"
    if price.as_of > now + MAX_CLOCK_DIFFERENCE:
        return f"{name}: as_of {price.as_of:%Y-%m-%d} has not come yet{kept}"
    if known is None:
        return None
    factor = amount / known.price
    if factor > MAX_PRICE_JUMP or factor < Decimal(1) / MAX_PRICE_JUMP:
        return (
            f"{name}: {format_usd(amount)} is more than {MAX_PRICE_JUMP} times away from what is "
            f"known{kept}; if it is right, go there in steps"
        )
    return None


def format_usd(amount: Decimal) -> str:
    """Write dollars as they are, without an exponent."""
    return f"{amount.normalize():f} USD"


@dataclass(frozen=True, slots=True)
class PriceUpdate:
    """What becomes of prices that were told.

    Attributes:
        accepted: Prices that hold from now on.
        refused: Why others are not believed, a sentence each.
    """

    accepted: tuple[PriceView, ...] = ()
    refused: tuple[str, ...] = ()


def judge_update(
    told: Iterable[PriceView], known: Mapping[PriceKey, PriceView], now: datetime
) -> PriceUpdate:
    """Judge prices one after the other, each by the last that was accepted for its item.

    An older price than the one that holds is neither accepted nor refused: nothing is wrong with
    it.
    """
    held, refused = dict(known), list[str]()
    accepted: dict[PriceKey, PriceView] = {}
    for price in told:
        key = key_of(price)
        why = find_refusal(price, held.get(key), now)
        if why is not None:
            refused.append(why)
        elif key not in held or rank_of(price) >= rank_of(held[key]):
            held[key] = accepted[key] = price
    return PriceUpdate(tuple(accepted.values()), tuple(refused))


def to_price(row: PriceRow, source: str, now: datetime) -> PriceView:
    """Return a row of a table as a price; without a moment of its own it is of now."""
    told = row.model_dump()
    return PriceView.model_validate({**told, "source": source, "as_of": row.as_of or now})


@cache
def shipped_prices() -> tuple[PriceView, ...]:
    """Return the list prices that came with this version, each with its date."""
    with SHIPPED_PRICES.open(encoding="utf-8", newline="") as lines:
        rows = read_price_rows(lines)
    return tuple(
        PriceView.model_validate({**row.model_dump(), "source": "shipped"}) for row in rows
    )


@dataclass(frozen=True, slots=True)
class PriceBook:
    """The prices that hold in the regions of a controller.

    Attributes:
        prices: By what each is the price of.
    """

    prices: Mapping[PriceKey, PriceView] = field(default_factory=dict)

    def price_per_hour(
        self, where: PricedRegion, machine_type: str, market: Market = "on_demand"
    ) -> Decimal:
        """Return dollars per hour of a machine with its disk and its public address.

        Raises:
            UnknownPrice: One of them has no known price; the message says what to import.
        """
        machine = sum(self._machine_parts(where, machine_type, market), Decimal(0))
        # Rounded up, so that what is reserved at this price pays the machine.
        return (machine + self.price_beside(where)).quantize(MIN_PRICE, ROUND_UP)

    def price_beside(self, where: PricedRegion) -> Decimal:
        """Return dollars per hour of what is billed beside a machine.

        Raises:
            UnknownPrice: A part of it has no known price.
        """
        total = Decimal(0)
        if where.disk and where.disk_gib:
            monthly = self._find(where, where.disk, "disk_gib_month")
            total += monthly * where.disk_gib / HOURS_PER_MONTH
        if where.has_public_address:
            total += self._find(where, PUBLIC_ADDRESS, "address_hour")
        return total.quantize(MIN_PRICE, ROUND_UP)

    def as_of(self, where: PricedRegion, machine_type: str) -> datetime | None:
        """Return when the oldest price was so of a machine's parts; None where none is known."""
        custom = CUSTOM_TYPE.fullmatch(machine_type)
        family = "" if custom is None else custom["family"]
        parts = {machine_type, family, where.disk, PUBLIC_ADDRESS} - {""}
        return min(
            (
                price.as_of
                for price in self.prices.values()
                if (price.provider, price.region) == (where.provider, where.region)
                and price.item in parts
                and price.market == "on_demand"
            ),
            default=None,
        )

    def _machine_parts(
        self, where: PricedRegion, machine_type: str, market: Market
    ) -> Iterator[Decimal]:
        custom = CUSTOM_TYPE.fullmatch(machine_type)
        listed = (where.provider, where.region, machine_type, "machine_hour", market)
        if custom is None or listed in self.prices:
            yield self._find(where, machine_type, "machine_hour", market)
            return
        vcpus, gib = Decimal(custom["vcpus"]), Decimal(custom["mib"]) / 1024
        yield self._find(where, custom["family"], "vcpu_hour", market) * vcpus
        yield self._find(where, custom["family"], "gib_hour", market) * gib

    def _find(
        self, where: PricedRegion, item: str, unit: str, market: Market = "on_demand"
    ) -> Decimal:
        found = self.prices.get((where.provider, where.region, item, unit, market))
        if found is None:
            place = f"{where.provider} {where.region}".strip() or "this cloud"
            raise UnknownPrice(
                f"no price of {item} in {place} is known: write a price such as 0.36 USD/h into "
                f"the job, or let an admin run 'scavenger prices import FILE' with a row of {item} "
                f"({unit})"
            )
        return found.price
