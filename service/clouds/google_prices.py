"""What Google answers about prices on spot, as prices of the controller. It imports no SDK.

Prices on demand come from the table that is shipped, and from imports: Google's catalogue lists
vCPUs and GiB by descriptions in prose, which say nothing of machine types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from scavenger.schemas.prices import PriceView

_NANOS = Decimal(10) ** -9


def spot_price_question(project: str, region: str, machine_type: str) -> Mapping[str, Any]:
    """Return the request for the history of a type's price on spot, in the whole region."""
    return {
        "project": project,
        "region": region,
        "capacity_history_request_resource": {
            "types": ["PRICE"],
            "instance_properties": {
                "machine_type": machine_type,
                "scheduling": {"provisioning_model": "SPOT"},
            },
        },
    }


def newest_spot_price(
    region: str, machine_type: str, history: Sequence[Any], now: datetime
) -> Iterator[PriceView]:
    """Yield the price of a history's last record; nothing where it has none in dollars.

    It holds until another is told, however long ago it began.
    """
    known = [one for one in history if one.list_price.currency_code == "USD"]
    if not known:
        return
    price = max(known, key=lambda one: _moment(one.interval.start_time)).list_price
    yield PriceView(
        provider="google",
        region=region,
        item=machine_type,
        unit="machine_hour",
        market="spot",
        price=Decimal(price.units) + price.nanos * _NANOS,
        as_of=now,
        source="cloud",
    )


def _moment(text: str) -> float:
    """Return an RFC 3339 time as a number; one that is missing is the earliest."""
    return datetime.fromisoformat(text).timestamp() if text else float("-inf")
