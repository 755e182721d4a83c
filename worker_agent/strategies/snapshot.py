"""Snapshot: the state of training at one moment, in host memory and free of any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import JsonValue

from worker_agent.strategies.strategy import Clock


class Stateful(Protocol):
    """Anything whose state can be asked for and given back, as PyTorch's objects do it."""

    def state_dict(self) -> Any:
        """Return the state: numbers, text, lists, tuples, sets, dicts and tensors."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take over a state that ``state_dict`` returned."""


def states_of(carried: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the state of each object by name.

    A method that somebody replaced on the object itself is no state, though PyTorch's schedulers,
    which return all their attributes, say so.
    """
    return {name: without_methods(each, each.state_dict()) for name, each in carried.items()}


def without_methods(owner: Stateful, state: Any) -> Any:
    """Leave out what hides a method of the owner's class."""
    if type(state) is not dict:
        return state
    return {
        name: value
        for name, value in state.items()
        if not (callable(value) and callable(getattr(type(owner), str(name), None)))
    }


@dataclass(frozen=True, slots=True)
class HostArray:
    """One tensor in host memory.

    Attributes:
        dtype: Name of its type as PyTorch says it, such as ``float32``.
        shape: Its sizes; empty for a scalar.
        content: Its values, row by row, in the byte order of the machine.
    """

    dtype: str
    shape: tuple[int, ...]
    content: bytes | bytearray | memoryview


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything of a training process that the next iteration depends on.

    Attributes:
        clock: Where training stands.
        tree: The plain part of the state as ``strategies.tree`` encodes it.
        arrays: Its tensors by name.
        wait: Returns when the arrays hold their values; a device may still be copying.
        release: Gives the arrays' memory back; nobody may read them afterwards.
    """

    clock: Clock
    tree: JsonValue
    arrays: Mapping[str, HostArray]
    wait: Callable[[], None] = nothing
    release: Callable[[], None] = nothing
