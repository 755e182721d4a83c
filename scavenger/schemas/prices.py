"""Schemas of prices, of what machines can be rented, and of what was spent."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from scavenger.schemas.base import Moment, MoneyView, View, refuse_word

PriceUnit = Literal["machine_hour", "vcpu_hour", "gib_hour", "disk_gib_month", "address_hour"]


PriceMarket = Literal["on_demand", "spot"]


# What is not finite is refused in words, like what is not plausible.
AnyDecimal = Annotated[Decimal, Field(allow_inf_nan=True)]
WrittenPrice = Annotated[
    AnyDecimal,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number"},
                {"type": "string", "pattern": r"^-?[0-9]{1,18}(\.[0-9]{1,18})?$"},
            ]
        },
        mode="validation",
    ),
]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
ItemName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class PriceRow(BaseModel):
    """One row of a price table; what is plausible, the controller judges.

    Attributes:
        provider: As in the clouds file.
        region: The cloud's word.
        item: The cloud's word for what is rented: a machine type, a family of custom sizes, a kind
            of disk, or ``public-ipv4``.
        unit: What the price is of.
        price: Dollars for one unit.
        memory_gib: Of a machine.
        accelerator: The cloud's word; empty where it has none.
        accelerators: How many.
        as_of: When it was so; None for now.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: ItemName
    region: ItemName
    item: ItemName
    unit: PriceUnit = "machine_hour"
    market: PriceMarket = "on_demand"
    price: WrittenPrice
    vcpus: Annotated[Amount, Field(le=100_000)] | None = None
    memory_gib: Annotated[Amount, Field(le=1_000_000)] | None = None
    accelerator: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,62}$")] = ""
    accelerators: Annotated[int, Field(ge=0, le=1024), BeforeValidator(refuse_word)] = 0
    as_of: Moment | None = None


class PriceView(View):
    """What one item costs in one region and market, as the controller plans with it.

    Attributes:
        source: ``shipped`` with the controller, ``imported`` by an admin, or told by the ``cloud``.
    """

    provider: str
    region: str
    item: str
    unit: PriceUnit
    market: PriceMarket
    price: AnyDecimal
    vcpus: float | None = None
    memory_gib: float | None = None
    accelerator: str = ""
    accelerators: int = 0
    as_of: datetime
    source: Literal["shipped", "imported", "cloud"]


class PriceList(View):
    """One page of prices, by provider, region and item."""

    prices: list[PriceView]
    next_cursor: str | None = None


class PriceImportView(View):
    """What became of an import.

    Attributes:
        accepted: How many prices hold from now on; older ones than those that hold do not count.
        refused: Why others are not believed, a sentence each.
    """

    accepted: int
    refused: list[str]


class OfferView(View):
    """One place to rent one kind of machine.

    Attributes:
        cloud: Name of the entry in the clouds file.
        zone: The cloud's word; empty where it has none.
        price_per_hour: Of the machine with its disk and its public address.
        is_upper_bound: Whether that is the price on demand, because no price on spot is known.
        as_of: When the price was so.
        memory_gib: None where it is not known, as ``vcpus``.
        shortage: Why the cloud gave no such machine there just now; None where it was not so.
        shortage_until: When it is asked again.
    """

    cloud: str
    zone: str
    machine_type: str
    market: PriceMarket
    price_per_hour: MoneyView
    is_upper_bound: bool
    as_of: datetime
    source: str
    vcpus: float | None
    memory_gib: float | None
    accelerator: str
    accelerators: int
    shortage: str | None = None
    shortage_until: datetime | None = None


class OfferList(View):
    """One page of offers, cheapest first."""

    offers: list[OfferView]
    next_cursor: str | None = None


class CostEntryView(View):
    """What one job, model, project, cloud or day cost.

    Attributes:
        key: Id of the job, key of the model, name of the project or cloud, or date.
        name: Name of the job; empty otherwise.
    """

    key: str
    name: str = ""
    cost: MoneyView


class CostReportView(View):
    """One page of what the machines of a project cost.

    Attributes:
        by: What an entry is: ``job``, ``model``, ``project``, ``cloud`` or ``day``.
        until: Machines that exist cost more from then on.
        total: Of all entries, those of other pages too.
        since: What was spent before is left out; None where all counts.
        not_included: What a cloud may bill besides, a sentence each.
    """

    by: str
    until: datetime
    total: MoneyView
    entries: list[CostEntryView]
    next_cursor: str | None = None
    since: datetime | None = None
    not_included: list[str] = []
