"""Prices of machines by cloud and region, as a cloud or somebody listed them."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.tables.sheet import Row, UnfitCell

REQUIRED = ("item", "usd_per_hour")
OPTIONAL = ("cloud", "region")
MOST_PRICES = 200_000


@dataclass(frozen=True, slots=True, order=True)
class ListedPrice:
    """What one thing costs in one region.

    Attributes:
        cloud: Who rents it out; empty where the file does not say.
        item: Name of the machine type.
        region: Where; empty where the file does not say.
        price_per_hour: Dollars per hour; 0 where it is not offered.
    """

    cloud: str
    item: str
    region: str
    price_per_hour: float

    @property
    def key(self) -> str:
        """Name and region, as machine types are named elsewhere."""
        return f"{self.item}@{self.region}" if self.region else self.item


class PriceTable:
    """Gathers rows into a list of prices."""

    def __init__(self) -> None:
        """Start without rows."""
        self._prices: list[ListedPrice] = []

    def take(self, row: Row) -> None:
        """Add one row.

        Raises:
            UnfitCell: It cannot be used.
        """
        if not row.text("item"):
            raise UnfitCell("item", "is empty: write the machine type")
        price = row.not_negative("usd_per_hour")
        if price is None:
            raise UnfitCell("usd_per_hour", "is empty: write dollars per hour, 0 if not offered")
        names = (row.text("cloud"), row.text("item"), row.text("region"))
        self._prices.append(ListedPrice(*names, price))
        if len(self._prices) > MOST_PRICES:
            message = f"more than {MOST_PRICES:,} prices: keep the ones in question"
            raise UnfitCell("item", message)

    def prices(self) -> tuple[ListedPrice, ...]:
        """Return the prices in the order of the rows."""
        return tuple(self._prices)
