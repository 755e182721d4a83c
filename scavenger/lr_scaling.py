"""How the learning rate follows the global batch."""

from __future__ import annotations

import math
from typing import Literal, assert_never

LearningRateRule = Literal["none", "linear", "sqrt"]

LINEAR_KAPPA = 10.0  # 2 / a for a learning rate at a fifth of the best; digits CNNs showed 12-20


def learning_rate_factor(rule: LearningRateRule, global_batch: int, reference_batch: int) -> float:
    """Factor for the learning rate that was written for the reference batch (SCIENCE §2).

    >>> learning_rate_factor("sqrt", global_batch=256, reference_batch=64)
    2.0
    """
    match rule:
        case "none":
            return 1.0
        case "linear":
            return global_batch / reference_batch
        case "sqrt":
            return math.sqrt(global_batch / reference_batch)
        case _:
            assert_never(rule)


def prior_kappa(rule: LearningRateRule) -> float:
    """Prior of κ in B_crit = κ φ, before finished jobs have taught it (SCIENCE §2).

    At a times the best learning rate of its batch, an iteration gains in proportion to
    a (1 - a/2). Scaled linearly from a small a, it stays small until B is about 2φ/a, and until
    then a larger batch costs no epochs; kept fixed or scaled less, it costs them from φ on.
    """
    return LINEAR_KAPPA if rule == "linear" else 1.0
