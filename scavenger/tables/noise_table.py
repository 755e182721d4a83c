"""NoiseTable: gradients and metric along runs at several batches, as somebody recorded them."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.tables.sheet import Row, UnfitCell

REQUIRED = ("global_batch", "iteration", "grad_sqr", "grad_var", "metric")
OPTIONAL = ("table", "epoch_row", "progress")
MOST_RECORDS = 200_000


@dataclass(frozen=True, slots=True, order=True)
class NoiseRecord:
    """The state of a run at the end of one of its epochs.

    Attributes:
        global_batch: Samples per iteration.
        iteration: Iterations since its start.
        gradient_norm_sq: Squared norm of the gradient.
        gradient_variance: Variance of the gradient at the table's smallest batch, so that times
            this batch over ``gradient_norm_sq`` it is φ in samples.
        metric: What was validated.
        progress: Iterations at the smallest batch that did as much; None where not recorded.
    """

    global_batch: int
    iteration: float
    gradient_norm_sq: float
    gradient_variance: float
    metric: float
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class NoiseTable:
    """Runs of one job to the same end, by batch.

    Attributes:
        name: Name of the table.
        records: Their states, by batch, then iteration.
    """

    name: str
    records: tuple[NoiseRecord, ...]


class NoiseTables:
    """Gathers rows into tables by name."""

    def __init__(self, name: str) -> None:
        """Start without rows; ``name`` is that of rows that name no table."""
        self._name = name
        self._records: dict[str, list[NoiseRecord]] = {}
        self._known = 0

    def take(self, row: Row) -> None:
        """Add one row.

        Raises:
            UnfitCell: It cannot be used.
        """
        record = NoiseRecord(
            row.whole("global_batch"),
            row.positive("iteration"),
            row.number("grad_sqr"),
            row.number("grad_var"),
            row.number("metric"),
            row.not_negative("progress"),
        )
        self._records.setdefault(row.text("table") or self._name, []).append(record)
        self._known += 1
        if self._known > MOST_RECORDS:
            message = f"more than {MOST_RECORDS:,} rows: keep one row for each epoch"
            raise UnfitCell("iteration", message)

    def tables(self) -> tuple[NoiseTable, ...]:
        """Return the tables in the order in which the rows named them."""
        return tuple(
            NoiseTable(name, tuple(sorted(records, key=lambda r: (r.global_batch, r.iteration))))
            for name, records in self._records.items()
        )
