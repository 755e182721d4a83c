"""Chooses again when the noise scale has drifted from the one the choice was made with."""

from __future__ import annotations

import math
from dataclasses import replace

from scavenger.measurement.stability import detect_drift
from scavenger.measurement.steps import StepColumns
from scavenger.planning.decision import PlanningInput, Run, choose_config, time_weight_of
from scavenger.planning.search.value_of_information import log_loss

# What saves less of the rest is not worth a resize.
LEAST_SAVED_SHARE = 0.03


def replan_after_drift(situation: PlanningInput, run: Run, rows: StepColumns) -> Run:
    """Return the run to go on with: the same one while φ holds, else one chosen by the new φ.

    B_crit = κ φ follows the noise scale, and κ stays (SCIENCE §2). A choice that saves too little
    changes the law but not the configuration.
    """
    law = run.model.statistical
    if not law.noise_scale:
        return run
    drift = detect_drift(rows, run.config.global_batch, law.noise_scale)
    if not drift.has_drifted or drift.noise_scale is None:
        return run
    model = replace(run.model, statistical=law.at_noise_scale(drift.noise_scale))
    again = choose_config(
        situation, model, situation.observations, drift.why, searched=run.searched
    )
    if saved_share(run, again, situation) >= LEAST_SAVED_SHARE:
        return again
    return replace(again, config=run.config)


def saved_share(run: Run, again: Run, situation: PlanningInput) -> float:
    """Share of the rest that the new choice saves against the old one, by the new curve."""
    weight = time_weight_of(situation.objective)
    losses = {p.config: log_loss(p.time, p.cost, weight) for p in again.curve.points}
    return 1 - math.exp(losses[again.config] - losses[run.config])
