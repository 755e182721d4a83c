"""Candidates: the configurations that a report predicts and chooses from."""

from __future__ import annotations

from collections.abc import Sequence

from scavenger.cluster import ClusterConfig
from scavenger.errors import NotEnoughData
from scavenger.fit.request import FitRequest
from scavenger.tables.step_table import StepTable

MOST_POINTS = 2000


def list_candidates(table: StepTable, request: FitRequest) -> tuple[ClusterConfig, ...]:
    """Return what to predict: measured configurations, and those between them or asked for.

    Raises:
        NotEnoughData: None is left, or more than can be shown: the message says what to ask for.
    """
    found = cross(table, request)
    if not request.workers and not request.global_batches:
        # Several machines may have been filled differently at the same workers and batch.
        measured = tuple(m.config for m in table.measurements)
        every = tuple(sorted({*found, *measured}))
        found = every if len(every) <= MOST_POINTS else measured
    if not found:
        raise NotEnoughData(none_left(table, request))
    if len(found) > MOST_POINTS:
        raise NotEnoughData(
            f"{len(found):,} configurations are more than {MOST_POINTS:,} that can be shown: "
            "narrow --workers or --batch"
        )
    return found


def cross(table: StepTable, request: FitRequest) -> tuple[ClusterConfig, ...]:
    """Return all worker counts with all batches.

    Unless other batches are asked for, local batches stay within the measured ones, and machines
    are filled as the fullest measured one.
    """
    measured = [m.config for m in table.measurements]
    hosted = max(config.workers_per_machine for config in measured)
    low, high = local_batches(table)
    known = {(c.workers, c.global_batch): c for c in reversed(measured)}
    return tuple(
        known.get((count, batch), ClusterConfig(count, batch, hosted))
        for count in counts_of(table, request)
        for batch in batches_of(table, request)
        if batch >= count and (request.global_batches or low <= batch / count <= high)
    )


def counts_of(table: StepTable, request: FitRequest) -> tuple[int, ...]:
    """Return the worker counts that are asked for, else the measured ones."""
    return request.workers or tuple(sorted({m.config.workers for m in table.measurements}))


def batches_of(table: StepTable, request: FitRequest) -> tuple[int, ...]:
    """Return the batches that are asked for, else the measured ones."""
    measured = {m.config.global_batch for m in table.measurements}
    return request.global_batches or tuple(sorted(measured))


def local_batches(table: StepTable) -> tuple[float, float]:
    """Return the ends of the measured samples per worker."""
    shares = [m.config.local_batch for m in table.measurements]
    return min(shares), max(shares)


def none_left(table: StepTable, request: FitRequest) -> str:
    """Say why no configuration is left."""
    low, high = local_batches(table)
    return (
        f"no configuration is left: none of workers {listed(counts_of(table, request))} can share "
        f"a batch of {listed(batches_of(table, request))} within the measured {low:g} to {high:g} "
        "samples per worker"
    )


def listed(values: Sequence[int]) -> str:
    """Write whole numbers by their ends.

    >>> listed([8]), listed([2, 4, 8])
    ('8', '2 to 8')
    """
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
