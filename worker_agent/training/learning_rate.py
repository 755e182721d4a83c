"""The factor that the script's learning rates are multiplied with, iteration by iteration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scavenger.measurement.noise import ShardNorms, SmoothedNoise
from scavenger.protocol import Directive
from worker_agent.frameworks import LateMeasurement, StepSummary
from worker_agent.state.progress import TrainingProgress

MIN_NOISE_ROWS = 20  # the smoothed noise of fewer rows is too unsure


@dataclass(frozen=True, slots=True)
class LearningRateFactor:
    """The transition from the factor of one generation to that of the next.

    Attributes:
        start_factor: Factor when the generation was entered.
        entered_at_epochs: Reference epochs when it was entered.
    """

    start_factor: float = 1.0
    entered_at_epochs: float = 0.0

    def factor(
        self, directive: Directive, progress: TrainingProgress, summary: StepSummary | None
    ) -> float:
        """Return the factor of the next iteration, the same on every worker.

        A factor that depends on measured noise is the leader's choice, so that all workers agree.
        """
        rule = directive.learning_rate
        if rule.rule == "adascale":
            return (
                progress.learning_rate_factor if summary is None else summary.learning_rate_factor
            )
        warm = rule.factor(directive.config.global_batch)
        return rule.warm_up_factor(
            self.start_factor, warm, progress.epochs - self.entered_at_epochs
        )

    def leader_factor(self, directive: Directive, progress: TrainingProgress) -> float:
        """Return the factor that the leader chooses from its measured noise."""
        if progress.noise.rows < MIN_NOISE_ROWS or progress.noise.noise_scale is None:
            return progress.learning_rate_factor
        batch, rule = directive.config.global_batch, directive.learning_rate
        return rule.factor(batch, progress.noise.noise_scale)


def update_noise(
    noise: SmoothedNoise, measured: StepSummary | LateMeasurement, global_batch: int
) -> SmoothedNoise:
    """Return the averages with one more iteration, if that carries information about noise."""
    local, mean = measured.local_norm_sq, measured.mean_norm_sq
    if measured.shards < 2 or local is None or mean is None:
        return noise
    if not math.isfinite(local) or not math.isfinite(mean):
        return noise
    return noise.with_row(ShardNorms(measured.shards, local, mean), global_batch)
