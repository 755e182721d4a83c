"""What a leader may measure, known from the iteration; light, since machines start often."""

from __future__ import annotations

import numpy as np

from scavenger.measurement.steps import StepColumns


def measured(first: int, rows: int, seed: int = 0) -> StepColumns:
    """Return rows as a leader may measure them, with some norms and losses missing."""
    chance = np.random.default_rng([seed, first])
    compute = chance.lognormal(-2, 0.1, rows)
    sync = chance.lognormal(-4, 0.5, rows)
    mean = chance.lognormal(0, 0.3, rows)
    lacks = chance.random(rows) < 0.05
    return StepColumns(
        iteration=tuple(range(first, first + rows)),
        shards=(4,) * rows,
        local_norm_sq=tuple(None if lack else x for lack, x in zip(lacks, 3 * mean, strict=True)),
        mean_norm_sq=tuple(None if lack else x for lack, x in zip(lacks, mean, strict=True)),
        compute_time=tuple(compute.tolist()),
        sync_time=tuple(sync.tolist()),
        step_time=tuple((compute + sync).tolist()),
        loss=tuple(chance.normal(1, 0.1, rows).tolist()),
        mean_compute_time=tuple((0.9 * compute).tolist()),
        fastest_compute_time=tuple((0.8 * compute).tolist()),
    )
