"""`StateManifest`: describes a state before its tensors travel, so that they can be allocated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_json
from torch import Tensor

from worker_agent.pytorch.tensors import dtype_name, gradient_strides
from worker_agent.state.progress import TrainingProgress


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What must be known of a tensor to make room for it.

    Attributes:
        dtype: Name of its type, such as ``float32``.
        shape: Its sizes.
        strides: In what order its values travel, that of their memory where it has no gaps.
        is_on_device: Whether it lives where the weights do, rather than on the host.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_on_device: bool

    @classmethod
    def of(cls, tensor: Tensor) -> TensorInfo:
        """Return the facts of a tensor."""
        is_on_device = tensor.device.type != "cpu"
        return cls(
            dtype_name(tensor.dtype), tuple(tensor.shape), gradient_strides(tensor), is_on_device
        )

    def room(self, device: torch.device) -> Tensor:
        """Return an uninitialised tensor like it."""
        place = device if self.is_on_device else "cpu"
        dtype: torch.dtype = getattr(torch, self.dtype)
        return torch.empty_strided(self.shape, self.strides, dtype=dtype, device=place)


@dataclass(frozen=True, slots=True)
class StateManifest:
    """A state without the values of its tensors.

    Attributes:
        clock: Where training stands.
        tree: The plain part of the state.
        tensors: The tensors' facts by name, in the order in which they travel.
        refusal: Why the state cannot be carried; empty when it can.
    """

    clock: TrainingProgress
    tree: JsonValue
    tensors: dict[str, TensorInfo]
    refusal: str = ""

    def to_json(self) -> bytes:
        """Return the description as it travels."""
        return to_json(self, inf_nan_mode="strings")

    def room(self, mine: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """Return where to put the tensors: in a worker's own where they fit, else in new ones."""
        return {
            name: mine[name]
            if name in mine and TensorInfo.of(mine[name]) == facts
            else facts.room(device)
            for name, facts in self.tensors.items()
        }

    @staticmethod
    def from_json(content: bytes) -> StateManifest:
        """Return what a source said."""
        return _MANIFEST.validate_json(content)


_MANIFEST: TypeAdapter[StateManifest] = TypeAdapter(StateManifest)


def first_mismatch(theirs: Mapping[str, Tensor], mine: Mapping[str, Tensor]) -> str | None:
    """Say which tensor of a state is the first that does not fit; None when all do."""
    return next(find_mismatches(theirs, mine), None)


def find_mismatches(theirs: Mapping[str, Tensor], mine: Mapping[str, Tensor]) -> Iterator[str]:
    """Say of each tensor that does not fit what it is in the state, and what it is here."""
    for name, tensor in mine.items():
        if name not in theirs:
            yield f"{name} is missing in the state; here it is {describe_tensor(tensor)}"
        elif describe_tensor(theirs[name]) != describe_tensor(tensor):
            there, here = describe_tensor(theirs[name]), describe_tensor(tensor)
            yield f"{name} is {there} in the state and {here} here"
    for name in theirs:
        if name not in mine:
            yield f"{name} is in the state and not in this model"


def describe_tensor(tensor: Tensor) -> str:
    """Return type and shape in words."""
    return f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}"
