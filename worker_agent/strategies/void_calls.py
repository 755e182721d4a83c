"""Calls of the script that must not count: those in half an iteration, and in one that is redone.

The loop body runs to its end there too. Its optimizer's step does nothing, so the schedule must not
advance, and the loss scaler must neither grow nor shrink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.amp import GradScaler
from torch.optim.lr_scheduler import LRScheduler


def void_calls(carried: Mapping[str, Any], is_void: Callable[[], bool]) -> None:
    """Let schedulers and loss scalers take no notice of iterations that do not count.

    An object's class is replaced, not its attribute: a script may pickle all that it holds.
    """
    for each in carried.values():
        if isinstance(each, LRScheduler):
            overrule(each, "step", _step(type(each).step, is_void))
        elif isinstance(each, GradScaler):
            overrule(each, "update", _update(type(each).update, is_void))


def overrule(owner: Any, name: str, method: Callable[..., None]) -> None:
    """Give one object another method."""
    kind = type(owner)
    owner.__class__ = type(kind.__name__, (kind,), {name: method, "__module__": kind.__module__})


def _step(step: Callable[..., None], is_void: Callable[[], bool]) -> Callable[..., None]:
    def step_if_it_counts(scheduler: LRScheduler, *arguments: Any, **named: Any) -> None:
        if not is_void():
            step(scheduler, *arguments, **named)

    return step_if_it_counts


def _update(update: Callable[..., None], is_void: Callable[[], bool]) -> Callable[..., None]:
    def update_if_it_counts(scaler: GradScaler, new_scale: Any = None) -> None:
        if is_void() and scaler.is_enabled():
            # Closes the scaler's own bookkeeping of this step, and changes neither scale nor count.
            update(scaler, scaler._scale)
        else:
            update(scaler, new_scale)

    return update_if_it_counts
