"""How the learning rate follows the global batch."""

from __future__ import annotations

import math
from typing import Literal, assert_never

LearningRateRule = Literal["none", "linear", "sqrt"]


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
