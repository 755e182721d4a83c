"""`SuppressedSteps`: undoes the script's calls in iterations that do not count.

The loop body also runs to its end in half an iteration, and in one that is redone. Its
optimizer's step does nothing, so the schedule must not advance, and the loss scaler must neither
grow nor shrink.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

from torch import Tensor
from torch.amp import GradScaler
from torch.optim.lr_scheduler import LRScheduler

from worker_agent.pytorch.tensors import encode_torch_state
from worker_agent.state.codec import decode_state
from worker_agent.state.progress import collect_states

Method = Callable[..., Any]


class SuppressedSteps:
    """Keeps schedulers and loss scalers unchanged by iterations that do not count.

    It replaces an object's class, not its method attribute, because the state of PyTorch's
    schedulers is all of their attributes. Pickles and copies have the original class.

    Args:
        objects: Schedulers, loss scalers and others, by name.
        is_void: Whether this pass of the loop body is known not to count.
        is_open: Whether it may still turn out not to count. A schedule advances in the meantime,
            since the script may read its rates, and is put back if necessary.
    """

    def __init__(
        self,
        objects: Mapping[str, Any],
        is_void: Callable[[], bool],
        is_open: Callable[[], bool],
    ) -> None:
        self.is_void, self.is_open = is_void, is_open
        self.before: dict[int, Callable[[], None]] = {}
        for each in objects.values():
            if isinstance(each, LRScheduler):
                may_step = partial(self._may_step, each)
                override_method(each, "step", partial(_step, may_step=may_step))
            elif isinstance(each, GradScaler):
                override_method(each, "update", partial(_update, is_void=is_void))

    def settle(self) -> None:
        """After an iteration, put back the schedules if it does not count."""
        before, self.before = self.before, {}
        if before and self.is_void():
            for put_back in before.values():
                put_back()

    def _may_step(self, scheduler: LRScheduler) -> bool:
        if self.is_void():
            return False
        if self.is_open():
            self.before.setdefault(id(scheduler), remember_scheduler(scheduler))
        return True


def remember_scheduler(scheduler: LRScheduler) -> Callable[[], None]:
    """Return a function that restores the present state of a scheduler and its groups."""
    encoded = encode_torch_state(collect_states({"scheduler": scheduler}))
    tensors = {name: tensor.clone() for name, tensor in encoded.arrays.items()}
    written = [
        (group, key, value, value.clone() if isinstance(value, Tensor) else value)
        for group in scheduler.optimizer.param_groups
        for key, value in group.items()
        if key != "params"
    ]

    def put_back() -> None:
        scheduler.load_state_dict(decode_state(encoded.tree, tensors)["scheduler"])
        for group, key, value, copy in written:
            if isinstance(value, Tensor):
                value.copy_(copy)
            group[key] = value

    return put_back


def override_method(owner: Any, name: str, around: Callable[[Method], Method]) -> None:
    """Replace a method of one object."""
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


def _step(step: Method, may_step: Callable[[], bool]) -> Method:
    def step_if_it_counts(*arguments: Any, **named: Any) -> Any:
        return step(*arguments, **named) if may_step() else None

    return step_if_it_counts


def _update(update: Method, is_void: Callable[[], bool]) -> Method:
    def update_if_it_counts(scaler: GradScaler, /, *arguments: Any, **named: Any) -> Any:
        if is_void() and scaler.is_enabled():
            # Ends the scaler's bookkeeping of this step, and changes neither scale nor count.
            return update(scaler, scaler._scale)
        return update(scaler, *arguments, **named)

    return update_if_it_counts
