"""Expected value of one more probe against its price (SCIENCE §5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scavenger.cluster import ClusterConfig, Floats
from scavenger.models.iteration_time import REPEAT_DEVIATION
from scavenger.planning.curve import TradeoffCurve

MIN_LOGGED = 1e-300


@dataclass(frozen=True, slots=True)
class ProbeValue:
    """What a probe is expected to save and what it takes, both as shares of the whole job.

    Attributes:
        config: The configuration to probe.
        saving: Expected saving from choosing better after it.
        relative_cost: What it takes beyond the training it does meanwhile.
    """

    config: ClusterConfig
    saving: float
    relative_cost: float

    @property
    def gain(self) -> float:
        """Saving less relative cost."""
        return self.saving - self.relative_cost


def best_probe(
    curve: TradeoffCurve,
    time_weight: float,
    relative_costs: Sequence[tuple[ClusterConfig, float]],
) -> ProbeValue | None:
    """Return the probe with the largest gain, which may be negative; None without candidates.

    In each posterior sample the loss of a configuration is time^w times cost^(1-w). Before a probe
    the configuration with the least mean loss is taken. A probe shows one configuration's seconds,
    up to their repeats; what it shows makes some samples more likely than others, and the best
    configuration may be another one then.

    Args:
        curve: The curve by what is known now, with posterior samples.
        time_weight: w, 1 when only time counts, 0 when only cost does.
        relative_costs: Candidates, and what probing each takes as a share of the whole job.
    """
    if not curve.draws or not relative_costs:
        return None
    factors = np.log(np.array([curve.draws[point.config].factors for point in curve.points]))
    losses = (
        np.array(
            [log_weighted_product(point.time, point.cost, time_weight) for point in curve.points]
        )[:, None]
        + factors
    )
    now = expected_loss(losses, np.full((losses.shape[1],) * 2, 1.0))
    values = []
    for config, cost in relative_costs:
        seen = np.log(np.array(curve.draws[config].step_time_factors))
        likelihood = np.exp(-0.5 * ((seen[:, None] - seen[None, :]) / REPEAT_DEVIATION) ** 2)
        values.append(ProbeValue(config, now - expected_loss(losses, likelihood), cost))
    return max(values, key=lambda value: (value.gain, value.config))


def log_weighted_product(time: float, cost: float, time_weight: float) -> float:
    """Logarithm of the weighted product; what is 0 is next to nothing, but has a logarithm."""
    logs = [math.log(max(value, MIN_LOGGED)) for value in (time, cost)]
    return time_weight * logs[0] + (1 - time_weight) * logs[1]


def expected_loss(losses: Floats, likelihood: Floats) -> float:
    """Mean loss over posterior samples, when the best choice after a probe is taken.

    A probe's result is consistent with several samples, so it weights them by their likelihood
    instead of telling which one is true. Knowing it never makes the mean worse than one choice for
    all.

    Args:
        losses: One row per configuration, one column per sample.
        likelihood: How likely each sample (row) shows what each sample (column) shows, up to a
            factor.
    """
    chances = likelihood / likelihood.sum(axis=1, keepdims=True)
    return float((losses @ chances).min(axis=0).mean())
