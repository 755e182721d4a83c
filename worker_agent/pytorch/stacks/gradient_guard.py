"""The gradient guard: whether a stack computes the gradients that the model has.

Each stack is compared with eager, and both with float64: a fixed tolerance would refuse correct
code. Of a bias before a batch normalisation the true gradient is zero, and float32 leaves rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker_agent.pytorch.stacks.model_call import Gradients

# How many times as far from float64 as eager a compiled gradient may lie.
MAX_ERROR_RATIO = 10.0
# Relative error below which gradients count as equal, although eager is nearer.
NEGLIGIBLE_ERROR = 1e-6


@dataclass(frozen=True, slots=True)
class WrongGradient:
    """A parameter whose gradient a stack computes wrongly.

    Attributes:
        parameter: Its name.
        error: Distance from the gradient in float64, relative to its length.
        eager_error: The same of eager.
        is_zero: Whether the gradient is zero where it should not be.
    """

    parameter: str
    error: float
    eager_error: float
    is_zero: bool

    def __str__(self) -> str:
        if self.is_zero:
            return f"the gradient of {self.parameter} is zero, and should not be"
        return (
            f"the gradient of {self.parameter} is {self.error:.1e} off the one in float64, where "
            f"eager is {self.eager_error:.1e} off"
        )


def find_wrong_gradient(
    names: Sequence[str], computed: Gradients, eager: Gradients, exact: Gradients
) -> WrongGradient | None:
    """Return the parameter whose gradient is furthest off; None if all are right.

    Args:
        names: The parameters.
        computed: Gradients of the stack.
        eager: Gradients of eager in the same precision.
        exact: Gradients in float64.
    """
    wrong: list[WrongGradient] = []
    for name, *alternatives in zip(names, computed, eager, exact, strict=True):
        ours, plain, true = map(dense, alternatives)
        length = norm(true)
        error, eager_error = distance(ours, true), distance(plain, true)
        allowed = MAX_ERROR_RATIO * max(eager_error, NEGLIGIBLE_ERROR * length)
        is_zero = norm(ours) == 0 and norm(plain) > 0
        if is_zero or not error <= allowed:  # a NaN is not below anything
            scale = length or 1.0
            wrong.append(WrongGradient(name, error / scale, eager_error / scale, is_zero))
    return max(wrong, key=lambda each: (each.is_zero, each.error), default=None)


def relative_error(computed: Gradients, exact: Gradients) -> float:
    """Return how far all gradients together are off, relative to their length in float64."""
    pairs = [(dense(one), dense(other)) for one, other in zip(computed, exact, strict=True)]
    length = math.hypot(*(norm(true) for _, true in pairs))
    return math.hypot(*(distance(ours, true) for ours, true in pairs)) / length if length else 0.0


def dense(gradient: Tensor | None) -> Tensor:
    """Return a gradient in float64; of a parameter without influence a zero."""
    if gradient is None:
        return torch.zeros((), dtype=torch.float64)
    return gradient.detach().to_dense().double()


def norm(gradient: Tensor) -> float:
    """Return the length of a gradient."""
    return float(torch.linalg.vector_norm(gradient))


def distance(one: Tensor, other: Tensor) -> float:
    """Return how far a gradient is from another."""
    return norm(one - other.to(one.device))
