"""MetricTarget: the hardest metric that runs at every batch reach, and the epochs each took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from scavenger.models.epochs import EpochsSeen
from scavenger.tables.noise_table import NoiseRecord, NoiseTable

# The last percent are reached by chance: a metric wobbles around its plateau.
SHARE_OF_THE_WAY = 0.98


@dataclass(frozen=True, slots=True)
class MetricTarget:
    """A value of the metric and what it took.

    Attributes:
        value: The metric to reach.
        rises: Whether larger is better.
        runs: Epochs to it, one run for each batch, ascending.
    """

    value: float
    rises: bool
    runs: tuple[EpochsSeen, ...]


def target_of(table: NoiseTable) -> MetricTarget | None:
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
    level = start + SHARE_OF_THE_WAY * (hardest - start)
    seen = (
        EpochsSeen(batch, iterations_to(level, sign, run) * batch / epoch)
        for batch, run in sorted(runs.items())
    )
    return MetricTarget(sign * level, rises, tuple(seen))


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
