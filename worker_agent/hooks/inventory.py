"""Inventory: the objects of the script that have a state, as the script makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import ref

from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from worker_agent.hooks.patch import Function, patch
from worker_agent.strategies.snapshot import Stateful


class Inventory:
    """Knows optimizers, schedulers and loss scalers in the order in which they were made.

    Attributes:
        has_resumed: Whether the script has loaded an optimizer's state by itself.
    """

    def __init__(self) -> None:
        self.has_resumed = False
        self._optimizers: list[ref[Any]] = []
        self._carried: list[ref[Any]] = []

    def patch(self) -> None:
        """Note every such object that is made from now on."""
        note_made(Optimizer, self._optimizers)
        for kind in (LRScheduler, ReduceLROnPlateau, GradScaler):
            note_made(kind, self._carried)
        patch(Optimizer, "load_state_dict", self._around_load)

    def _around_load(self, load: Function) -> Function:
        def load_state_dict(optimizer: Optimizer, *arguments: Any, **options: Any) -> None:
            self.has_resumed = True
            load(optimizer, *arguments, **options)

        return load_state_dict

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that still live."""
        return living(self._optimizers)

    @property
    def carried(self) -> Mapping[str, Stateful]:
        """Schedulers and enabled loss scalers that still live, by place and kind."""
        objects = [each for each in living(self._carried) if getattr(each, "_enabled", True)]
        return {f"{place} {type(each).__name__}": each for place, each in enumerate(objects)}


def note_made(kind: type, seen: list[ref[Any]]) -> None:
    """Note every object of a class that is made from now on."""

    def around(make: Function) -> Function:
        def init(made: Any, *arguments: Any, **options: Any) -> None:
            make(made, *arguments, **options)
            if all(each() is not made for each in seen):
                seen.append(ref(made))

        return init

    patch(kind, "__init__", around)


def living(seen: list[ref[Any]]) -> list[Any]:
    """Return the objects that still exist."""
    return [made for each in seen if (made := each()) is not None]
