"""Norms of gradients, computed on their device."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from worker_agent.launcher.step_timer import RunningIteration
from worker_agent.pytorch.device_clock import DeviceValues

HALF_PRECISION = (torch.float16, torch.bfloat16)


def gradient_norm(gradient: Tensor) -> Tensor:
    """Return ||gradient|| on its device, added up in at least float32."""
    wide = torch.float32 if gradient.dtype in HALF_PRECISION else None
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=wide)
    return norm


def gradient_norms(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the norms of the gradients of those parameters that have one."""
    by_width: dict[bool, list[Tensor]] = {True: [], False: []}
    for each in parameters:
        if each.grad is not None:
            by_width[each.grad.dtype in HALF_PRECISION].append(each.grad.detach())
    norms: list[Tensor] = []
    for is_narrow, gradients in by_width.items():
        if gradients:
            norms += torch._foreach_norm(gradients, 2, torch.float32 if is_narrow else None)
    return norms


def start_reading(current: RunningIteration) -> DeviceValues | None:
    """Send both squared norms to the host, without the scale of the loss."""
    if not current.local_norms or current.is_mixed:
        return None
    local = sum_of_squares(current.local_norms)
    # With more ranks than parameters some have no part of the average to look at.
    mean = sum_of_squares(current.mean_norms) if current.mean_norms else torch.zeros_like(local)
    values = torch.stack([local, mean])
    if current.loss_scale is not None:
        values /= current.loss_scale.to(values).square()
    return DeviceValues(values)


def sum_of_squares(norms: list[Tensor]) -> Tensor:
    """Return Σ ||·||² in float64, on the device."""
    total: Tensor = torch.stack(norms).double().square().sum()
    return total
