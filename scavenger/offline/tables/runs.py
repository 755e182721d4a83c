"""Tables of whole runs: epochs to a target by batch, and gradients and metric along runs.

A noise table also tells epochs: ``common_target`` finds the hardest metric value that the runs at
every batch reach. Names of tables are paths, by which ``nearest_ancestor`` pairs a table of epochs
with one of seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from scavenger.models.epochs import FinishedRun
from scavenger.offline.tables.csv_reader import CsvRow, InvalidCell

EPOCHS_TABLE_COLUMNS = ("global_batch", "epochs")
OPTIONAL_EPOCHS_TABLE_COLUMNS = ("table",)
MAX_TABLE_RUNS = 100_000


@dataclass(frozen=True, slots=True)
class EpochsTable:
    """What runs to one target took, by batch.

    Attributes:
        name: Name of the table.
        runs: The runs, several at one batch possibly, in the order of the rows.
    """

    name: str
    runs: tuple[FinishedRun, ...]


class EpochsTableBuilder:
    """Gathers rows into tables by name."""

    def __init__(self, name: str) -> None:
        """Start without rows; ``name`` is that of rows that name no table."""
        self._name = name
        self._runs: dict[str, list[FinishedRun]] = {}
        self._known = 0

    def add_row(self, row: CsvRow) -> None:
        """Add one row.

        Raises:
            InvalidCell: It cannot be used.
        """
        run = FinishedRun(row.whole("global_batch"), row.positive("epochs"))
        self._runs.setdefault(row.text("table") or self._name, []).append(run)
        self._known += 1
        if self._known > MAX_TABLE_RUNS:
            message = f"more than {MAX_TABLE_RUNS:,} runs: write the median of each batch"
            raise InvalidCell("epochs", message)

    def tables(self) -> tuple[EpochsTable, ...]:
        """Return the tables in the order in which the rows named them."""
        return tuple(EpochsTable(name, tuple(runs)) for name, runs in self._runs.items())


NOISE_TABLE_COLUMNS = ("global_batch", "iteration", "grad_sqr", "grad_var", "metric")
OPTIONAL_NOISE_TABLE_COLUMNS = ("table", "epoch_row", "progress")
MAX_NOISE_RECORDS = 200_000


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


class NoiseTableBuilder:
    """Gathers rows into tables by name."""

    def __init__(self, name: str) -> None:
        """Start without rows; ``name`` is that of rows that name no table."""
        self._name = name
        self._records: dict[str, list[NoiseRecord]] = {}
        self._known = 0

    def add_row(self, row: CsvRow) -> None:
        """Add one row.

        Raises:
            InvalidCell: It cannot be used.
        """
        record = NoiseRecord(
            row.whole("global_batch"),
            row.positive("iteration"),
            row.number("grad_sqr"),
            row.number("grad_var"),
            row.number("metric"),
            row.optional_not_negative("progress"),
        )
        self._records.setdefault(row.text("table") or self._name, []).append(record)
        self._known += 1
        if self._known > MAX_NOISE_RECORDS:
            message = f"more than {MAX_NOISE_RECORDS:,} rows: keep one row for each epoch"
            raise InvalidCell("iteration", message)

    def tables(self) -> tuple[NoiseTable, ...]:
        """Return the tables in the order in which the rows named them."""
        return tuple(
            NoiseTable(name, tuple(sorted(records, key=lambda r: (r.global_batch, r.iteration))))
            for name, records in self._records.items()
        )


# The last percent are reached by chance: a metric wobbles around its plateau.
TARGET_SHARE = 0.98


@dataclass(frozen=True, slots=True)
class CommonTarget:
    """A value of the metric and what it took.

    Attributes:
        value: The metric to reach.
        rises: Whether larger is better.
        runs: Epochs to it, one run for each batch, ascending.
    """

    value: float
    rises: bool
    runs: tuple[FinishedRun, ...]


def common_target(table: NoiseTable) -> CommonTarget | None:
    """Return the target that every batch reaches; None of fewer than two batches.

    It lies 98 % of the way from the median first metric to the best one that every batch reaches.
    Whether the metric rises is told by most runs. Epochs are samples over the smallest batch's
    first record, which is one epoch; between records they are interpolated.
    """
    runs: dict[int, list[NoiseRecord]] = defaultdict(list)
    for record in table.records:
        runs[record.global_batch].append(record)
    if len(runs) < 2:
        return None
    smallest = min(runs)
    epoch = runs[smallest][0].iteration * smallest
    rises = median(run[-1].metric - run[0].metric for run in runs.values()) > 0
    sign = 1.0 if rises else -1.0
    start = median(sign * run[0].metric for run in runs.values())
    hardest = min(max(sign * record.metric for record in run) for run in runs.values())
    level = start + TARGET_SHARE * (hardest - start)
    seen = (
        FinishedRun(batch, iterations_to(level, sign, run) * batch / epoch)
        for batch, run in sorted(runs.items())
    )
    return CommonTarget(sign * level, rises, tuple(seen))


def iterations_to(level: float, sign: float, run: Sequence[NoiseRecord]) -> float:
    """Return iterations until a run first reaches a level, interpolated from the record before."""
    place = next((n for n, record in enumerate(run) if sign * record.metric >= level), len(run) - 1)
    after = run[place]
    if place == 0:
        return after.iteration
    before = run[place - 1]
    # The record before lies below the level, so that the rise is not 0.
    share = (level - sign * before.metric) / (sign * (after.metric - before.metric))
    return before.iteration + min(max(share, 0.0), 1.0) * (after.iteration - before.iteration)


def nearest_ancestor(name: str, names: Iterable[str]) -> str | None:
    """Return the longest name that is this one or a folder above it; None if there is none.

    >>> nearest_ancestor("pollux/bert/T4/spread", ["pollux", "pollux/bert", "pollux/be"])
    'pollux/bert'
    """
    above = (other for other in names if name == other or name.startswith(f"{other}/"))
    return max(above, key=len, default=None)
