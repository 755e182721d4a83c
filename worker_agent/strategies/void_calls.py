"""Calls of the script that must not count: those in half an iteration, and in one that is redone.

The loop body runs to its end there too. Its optimizer's step does nothing, so the schedule must not
advance, and the loss scaler must neither grow nor shrink.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from torch.amp import GradScaler
from torch.optim.lr_scheduler import LRScheduler

Method = Callable[..., Any]


def void_calls(carried: Mapping[str, Any], is_void: Callable[[], bool]) -> None:
    """Let schedulers and loss scalers take no notice of iterations that do not count.

    An object's class is replaced, not its attribute: a state of PyTorch's schedulers is all of
    their attributes. What is pickled or copied is of the class it was.
    """
    for each in carried.values():
        if isinstance(each, LRScheduler):
            overrule(each, "step", lambda step: _step(step, is_void))
        elif isinstance(each, GradScaler):
            overrule(each, "update", lambda update: _update(update, is_void))


def overrule(owner: Any, name: str, around: Callable[[Method], Method]) -> None:
    """Give one object another method."""
    kind: Any = type(owner)
    method = getattr(kind, name)

    def reduce(self: Any, protocol: Any) -> Any:
        reduced = kind.__reduce_ex__(self, protocol)
        if isinstance(reduced, str):
            return reduced
        make, given, *rest = reduced
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle allows only type(self)
            make = kind.__new__
        return make, tuple(kind if each is type(self) else each for each in given), *rest

    owner.__class__ = type(
        kind.__name__,
        (kind,),
        {
            name: wraps(method)(around(method)),
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__reduce_ex__": reduce,
        },
    )


def _step(step: Method, is_void: Callable[[], bool]) -> Method:
    def step_if_it_counts(*arguments: Any, **named: Any) -> Any:
        return None if is_void() else step(*arguments, **named)

    return step_if_it_counts


def _update(update: Method, is_void: Callable[[], bool]) -> Method:
    def update_if_it_counts(scaler: GradScaler, /, *arguments: Any, **named: Any) -> Any:
        if is_void() and scaler.is_enabled():
            # Closes the scaler's own bookkeeping of this step, and changes neither scale nor count.
            return update(scaler, scaler._scale)
        return update(scaler, *arguments, **named)

    return update_if_it_counts
