"""EpochsError: epochs to target predicted from two or three batches, beside those of the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scavenger.models.epochs import EpochsSeen, Laws, average_runs, fit_statistical
from scavenger.models.epochs_level import epochs_at
from scavenger.models.uncertainty import TENTH
from scavenger.tables.epochs_table import EpochsTable


@dataclass(frozen=True, slots=True)
class EpochsError:
    """How far predicted epochs of a table lie from what was measured.

    Attributes:
        table: Name of the table.
        laws: Whether the adaptive law or the paper's was fitted.
        batches: Batches the law was fitted to.
        rest: Batches predicted.
        error: Mean of |predicted / measured - 1| over the rest.
        covered: Share of the rest within the predicted 80 % band; None of a law without one.
    """

    table: str
    laws: Laws
    batches: int
    rest: int
    error: float
    covered: float | None


def epochs_error(table: EpochsTable, batches: int, laws: Laws) -> EpochsError | None:
    """Predict a table from some of its batches; None where it has no more than these."""
    runs = average_runs(table.runs)
    if len(runs) <= batches:
        return None
    known = spread_batches(runs, batches)
    model = fit_statistical((), runs=known, laws=laws)
    rest = [run for run in runs if run not in known]
    predicted = np.array([epochs_at(model, known, run.global_batch) for run in rest])
    measured = np.array([run.epochs for run in rest])
    apart = np.abs(np.log(predicted / measured))
    batches_left = np.array([float(run.global_batch) for run in rest])
    band = TENTH * model.deviations(batches_left, known[0].global_batch)
    return EpochsError(
        table=table.name,
        laws=laws,
        batches=batches,
        rest=len(rest),
        error=float(np.abs(predicted / measured - 1).mean()),
        covered=float((apart <= band).mean()) if model.spread else None,
    )


def spread_batches(runs: Sequence[EpochsSeen], count: int) -> tuple[EpochsSeen, ...]:
    """Return the two extreme batches and, of three, the one nearest their geometric mean.

    Of two equally near it is the smaller, where epochs bend most.

    Args:
        runs: One run for each batch, ascending.
        count: 2 or 3, fewer where there are fewer.
    """
    if len(runs) <= count:
        return tuple(runs)
    first, last = runs[0], runs[-1]
    if count == 2:
        return first, last
    middle = math.sqrt(first.global_batch * last.global_batch)
    # Rounded, because powers of two lie equally near but for the last digit of a logarithm.
    gaps = {run: round(abs(math.log(run.global_batch / middle)), 9) for run in runs[1:-1]}
    return first, min(gaps, key=lambda run: (gaps[run], run.global_batch)), last
