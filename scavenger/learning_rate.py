"""How the learning rate follows the global batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, assert_never

LearningRateRule = Literal["none", "linear", "sqrt", "adascale"]

LINEAR_KAPPA = 10.0  # 2 / a for a learning rate at a fifth of the best; digits CNNs showed 12-20


@dataclass(frozen=True, slots=True)
class LearningRateScaling:
    """How the learning rate that was written for one batch follows to others.

    Attributes:
        rule: The law.
        reference_batch: Global batch the learning rate was written for, in samples.
        warm_up: Reference epochs over which a larger factor is approached, in a straight line from
            the one before; a smaller one holds at once (Goyal et al., section 2.2).
    """

    rule: LearningRateRule = "none"
    reference_batch: int = 1
    warm_up: float = 0.0

    def __post_init__(self) -> None:
        if self.reference_batch < 1:
            raise ValueError(f"reference_batch must be at least 1, got {self.reference_batch}")
        if not 0 <= self.warm_up < math.inf:
            raise ValueError(f"warm_up must be 0 or more and finite, got {self.warm_up}")

    def factor(self, global_batch: int, noise_scale: float | None = None) -> float:
        """Factor at this batch once it is warm (SCIENCE §2).

        ``adascale`` is the gain of AdaScale SGD (Johnson et al., 2020), by which the larger batch
        makes one iteration worth more: 1 where gradients agree and B / B0 where noise is all
        there is.

        Args:
            global_batch: Samples of one iteration.
            noise_scale: φ in samples, for ``adascale``; None while it is unknown, which leaves the
                learning rate as it is.

        >>> LearningRateScaling("sqrt", reference_batch=64).factor(256)
        2.0
        >>> LearningRateScaling("adascale", reference_batch=64).factor(256, noise_scale=256.0)
        2.5
        """
        match self.rule:
            case "none":
                return 1.0
            case "linear":
                return global_batch / self.reference_batch
            case "sqrt":
                return math.sqrt(global_batch / self.reference_batch)
            case "adascale":
                if noise_scale is None:
                    return 1.0
                return (1 + noise_scale / self.reference_batch) / (1 + noise_scale / global_batch)
            case _:
                assert_never(self.rule)

    def warm_up_factor(self, before: float, after: float, progress: float) -> float:
        """Factor on the way from one to another.

        Args:
            before: Factor when the change was made.
            after: Factor when it is warm.
            progress: Reference epochs since the change.

        >>> LearningRateScaling("linear", 64, warm_up=5.0).warm_up_factor(1.0, 8.0, progress=2.5)
        4.5
        """
        if after <= before or progress >= self.warm_up:
            return after
        return before + (after - before) * progress / self.warm_up


def prior_kappa(rule: LearningRateRule) -> float:
    """Prior of κ in B_crit = κ φ, before finished jobs have taught it (SCIENCE §2).

    Let a be the learning rate as a share of the best one for its batch: an iteration then gains in
    proportion to a (1 - a/2). Scaled linearly from a small a, the share stays small until B is
    about 2φ/a, and until then a larger batch costs no epochs. With a learning rate that is kept
    fixed, scaled less, or scaled by the gain of AdaScale, it costs epochs from φ on.
    """
    return LINEAR_KAPPA if rule == "linear" else 1.0
