"""What a ``GradScaler`` leaves to a fused step: whether to skip, and the scale of the gradients.

It tells an optimizer with ``_step_supports_amp_scaling`` through two attributes, for the length of
the step. Where servers step instead, the worker that sends them the gradient does both.
"""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer


def is_to_be_skipped(optimizer: Optimizer) -> bool:
    """Whether the step that has begun must do nothing; reads the answer on the host."""
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf.item())


def unscaled(optimizer: Optimizer, gradients: list[Tensor]) -> list[Tensor]:
    """Return the gradients of the step that has begun without their scale."""
    scale: Tensor | None = getattr(optimizer, "grad_scale", None)
    if scale is None:
        return gradients
    return [gradient / scale.to(gradient.device) for gradient in gradients]
