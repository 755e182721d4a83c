"""follow_drift(): choose again when the noise scale has left the one the choice was made with."""

from __future__ import annotations

import math
from dataclasses import replace

from scavenger.decision import Run, Situation, choose, weight_of
from scavenger.protocol import StepColumns
from scavenger.search.value_of_information import weigh
from scavenger.stability import judge_drift

# What saves less of the rest is not worth a resize.
LEAST_SAVING = 0.03


def follow_drift(situation: Situation, run: Run, rows: StepColumns) -> Run:
    """Return the run to go on with: the same one while φ holds, else one chosen by the new φ.

    B_crit = κ φ follows the noise scale, and κ stays (SCIENCE §2). A choice that saves too little
    changes the law but not the configuration.
    """
    law = run.model.statistical
    if not law.noise_scale:
        return run
    drift = judge_drift(rows, run.config.global_batch, law.noise_scale)
    if not drift.has_drifted or drift.noise_scale is None:
        return run
    model = replace(run.model, statistical=law.at_noise_scale(drift.noise_scale))
    again = choose(situation, model, situation.observations, drift.why, searched=run.searched)
    if saved(run, again, situation) >= LEAST_SAVING:
        return again
    return replace(again, config=run.config)


def saved(run: Run, again: Run, situation: Situation) -> float:
    """Share of the rest that the new choice saves against the old one, by the new curve."""
    weight = weight_of(situation.objective)
    burdens = {p.config: weigh(p.time, p.cost, weight) for p in again.curve.points}
    return 1 - math.exp(burdens[again.config] - burdens[run.config])
