"""Inventory: the objects of the script that have a state, as the script makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import ref

from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from worker_agent.hooks.patch import Function, Patch
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

    def patches(self) -> tuple[Patch, ...]:
        """Return what is to be replaced to note every such object that is made from now on."""
        carried = (LRScheduler, ReduceLROnPlateau, GradScaler)
        return (
            Patch(Optimizer, "__init__", after=noting(self._optimizers)),
            *(Patch(kind, "__init__", after=noting(self._carried)) for kind in carried),
            Patch(Optimizer, "load_state_dict", before=self._resumes),
        )

    def _resumes(self, *_: Any) -> None:
        self.has_resumed = True

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that still live."""
        return living(self._optimizers)

    @property
    def carried(self) -> Mapping[str, Stateful]:
        """Schedulers and enabled loss scalers that still live, by place and kind."""
        objects = [each for each in living(self._carried) if getattr(each, "_enabled", True)]
        return {f"{place} {type(each).__name__}": each for place, each in enumerate(objects)}


def noting(seen: list[ref[Any]]) -> Function:
    """Return what notes an object that was just made, once."""

    def note(made: Any, *_: Any) -> None:
        if all(each() is not made for each in seen):
            seen.append(ref(made))

    return note


def living(seen: list[ref[Any]]) -> list[Any]:
    """Return the objects that still exist."""
    return [made for each in seen if (made := each()) is not None]
