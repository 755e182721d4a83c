"""The factor that the script's learning rates are multiplied with, iteration by iteration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scavenger.measurement.noise import ShardNorms, SmoothedNoise
from scavenger.protocol import Directive
from worker_agent.frameworks import StepSummary
from worker_agent.state.progress import TrainingProgress

MIN_NOISE_ROWS = 20  # before them the smoothed noise says little


@dataclass(frozen=True, slots=True)
class LearningRateFactor:
    """The way from one factor to the next.

    Attributes:
        before: Factor when the generation was entered.
        entered_at: Reference epochs when it was entered.
    """

    before: float = 1.0
    entered_at: float = 0.0

    def factor(
        self, directive: Directive, clock: TrainingProgress, tally: StepSummary | None
    ) -> float:
        """Return the factor of the next iteration, the same on every worker.

        What depends on measured noise is the leader's to say, so that all step alike.
        """
        rule = directive.learning_rate
        if rule.rule == "adascale":
            return clock.learning_rate_factor if tally is None else tally.learning_rate_factor
        warm = rule.factor(directive.config.global_batch)
        return rule.warm_up_factor(self.before, warm, clock.epochs - self.entered_at)

    def wanted(self, directive: Directive, clock: TrainingProgress) -> float:
        """Return the factor a leader wants, by the noise it has measured."""
        if clock.noise.rows < MIN_NOISE_ROWS or clock.noise.noise_scale is None:
            return clock.learning_rate_factor
        batch, rule = directive.config.global_batch, directive.learning_rate
        return rule.factor(batch, clock.noise.noise_scale)


def update_noise(noise: SmoothedNoise, tally: StepSummary, global_batch: int) -> SmoothedNoise:
    """Return the averages with what was agreed on one iteration, if it says anything of noise."""
    local, mean = tally.local_norm_sq, tally.mean_norm_sq
    if tally.shards < 2 or local is None or mean is None:
        return noise
    if not math.isfinite(local) or not math.isfinite(mean):
        return noise
    return noise.with_row(ShardNorms(tally.shards, local, mean), global_batch)
