"""What AWS answers about prices, as prices of the controller. It imports no SDK."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from scavenger.schemas.prices import PriceMarket, PriceView
from service.errors import ProviderUnavailable

_HOURLY = "Hrs"
_PRODUCT = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}


def pricing_region(region: str) -> str:
    """Return the region whose endpoint is asked for price lists: few have one."""
    match region.partition("-")[0]:
        case "eu":
            return "eu-central-1"
        case "ap":
            return "ap-south-1"
        case _:
            return "us-east-1"


def product_filters(region: str, machine_type: str) -> Sequence[Mapping[str, str]]:
    """Return what picks the one product out of a price list that a launch is billed by."""
    fields = {"instanceType": machine_type, "regionCode": region, **_PRODUCT}
    return [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in fields.items()]


def spot_filters(types: Collection[str]) -> Sequence[Mapping[str, Any]]:
    """Return what picks these types out of the prices on spot.

    The call has a parameter for types, too, but fails as a whole for one that does not exist, and a
    job may name any.
    """
    return [
        {"Name": "instance-type", "Values": sorted(types)},
        {"Name": "product-description", "Values": ["Linux/UNIX"]},
    ]


def dearest_spot_prices(
    region: str, zones: Collection[str], history: Sequence[Mapping[str, Any]], now: datetime
) -> Iterator[PriceView]:
    """Yield the price of each type on spot, of the dearest of these zones.

    A price holds until the next one is told, however long ago it began.
    """
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for each in history:
        place = each["InstanceType"], each["AvailabilityZone"]
        if place[1] in zones and (
            place not in newest or each["Timestamp"] > newest[place]["Timestamp"]
        ):
            newest[place] = each
    for machine_type in sorted({machine_type for machine_type, _ in newest}):
        told = [each for (name, _), each in newest.items() if name == machine_type]
        dearest = max(_dollars(each["SpotPrice"]) for each in told)
        yield _price(region, machine_type, "spot", dearest, now)


def on_demand_prices(
    region: str, machine_type: str, products: Sequence[str], now: datetime
) -> Iterator[PriceView]:
    """Yield the price of a type on demand, with its size; none where AWS lists none.

    Raises:
        ProviderUnavailable: The price list cannot be read.
    """
    for product in products:
        try:
            told = json.loads(product)
            attributes = told["product"]["attributes"]
            amounts = [
                _dollars(dimension["pricePerUnit"]["USD"])
                for term in told["terms"].get("OnDemand", {}).values()
                for dimension in term["priceDimensions"].values()
                if dimension["unit"] == _HOURLY
            ]
            size = {
                "vcpus": float(attributes["vcpu"]),
                "memory_gib": float(attributes["memory"].removesuffix(" GiB").replace(",", "")),
            }
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ProviderUnavailable(
                f"the price list of {machine_type} cannot be read: {error!r}"
            ) from error
        # Reserved capacity that lies idle is listed at nothing.
        if amount := max(amounts, default=Decimal(0)):
            yield _price(region, machine_type, "on_demand", amount, now).model_copy(update=size)


def _dollars(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise ProviderUnavailable(f"AWS tells a price that is no number: {text!r}") from error


def _price(
    region: str, machine_type: str, market: PriceMarket, amount: Decimal, now: datetime
) -> PriceView:
    return PriceView(
        provider="aws",
        region=region,
        item=machine_type,
        unit="machine_hour",
        market=market,
        price=amount,
        as_of=now,
        source="cloud",
    )
