"""EpochsTable: epochs to a target by global batch, as somebody measured them."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.models.epochs import EpochsSeen
from scavenger.tables.sheet import Row, UnfitCell

REQUIRED = ("global_batch", "epochs")
OPTIONAL = ("table",)
MOST_RUNS = 100_000


@dataclass(frozen=True, slots=True)
class EpochsTable:
    """What runs to one target took, by batch.

    Attributes:
        name: Name of the table.
        runs: The runs, several at one batch possibly, in the order of the rows.
    """

    name: str
    runs: tuple[EpochsSeen, ...]


class EpochsTables:
    """Gathers rows into tables by name."""

    def __init__(self, name: str) -> None:
        """Start without rows; ``name`` is that of rows that name no table."""
        self._name = name
        self._runs: dict[str, list[EpochsSeen]] = {}
        self._known = 0

    def take(self, row: Row) -> None:
        """Add one row.

        Raises:
            UnfitCell: It cannot be used.
        """
        run = EpochsSeen(row.whole("global_batch"), row.positive("epochs"))
        self._runs.setdefault(row.text("table") or self._name, []).append(run)
        self._known += 1
        if self._known > MOST_RUNS:
            message = f"more than {MOST_RUNS:,} runs: write the median of each batch"
            raise UnfitCell("epochs", message)

    def tables(self) -> tuple[EpochsTable, ...]:
        """Return the tables in the order in which the rows named them."""
        return tuple(EpochsTable(name, tuple(runs)) for name, runs in self._runs.items())
