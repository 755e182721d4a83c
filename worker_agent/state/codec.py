"""Encodes nested state as JSON and named tensors, and decodes it exactly.

State that travels to a newcomer and state that is written into a checkpoint have the same
encoding. Only plain values, containers of plain values and dense tensors are accepted, so
nothing that is read can run.
"""

from __future__ import annotations

import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor, nn

from worker_agent.errors import StateRefused

MAX_NESTING = 40  # levels; each is up to three of JSON, whose readers give up at 200

SEQUENCES: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}


@dataclass(frozen=True, slots=True)
class EncodedState:
    """A state in its encoded form.

    Attributes:
        json: The plain part; where a tensor was stands its name.
        tensors: The tensors themselves, not copies, by the path that leads to them.
    """

    json: JsonValue
    tensors: Mapping[str, Tensor]


def encode_state(state: object) -> EncodedState:
    """Take a state apart into JSON and tensors; floats stay exact, infinities and NaN too.

    Raises:
        StateRefused: The state holds an object of another kind; the message says where.

    >>> encode({"rates": (0.5, None)}).json
    {'dict': [['rates', {'tuple': [0.5, None]}]]}
    """
    encoder = StateEncoder()
    return EncodedState(encoder.encode(state, ()), encoder.tensors)


def decode_state(json: JsonValue, tensors: Mapping[str, Tensor]) -> Any:
    """Build the state again; containers are new, tensors are those given.

    Raises:
        StateRefused: The JSON is not what ``encode`` writes, or names a tensor that is not there.
    """
    try:
        return decode_value(json, tensors)
    except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
        raise StateRefused(f"the state is not in the form it is written in: {error!r}") from error


@dataclass(slots=True)
class StateEncoder:
    """Walks through one state.

    Attributes:
        tensors: The tensors met so far, by name.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)

    def encode(self, value: Any, path: tuple[str, ...]) -> JsonValue:
        """Return the JSON for a value at this place; raises StateRefused."""
        kind = type(value)
        if value is None or kind in (bool, int, str, float):
            return self._plain(value, path)
        if len(path) > MAX_NESTING:
            raise StateRefused(
                f"{path_text(path[:4])}/… is nested deeper than {MAX_NESTING} levels"
            )
        if kind is list:
            return self._items(value, path)
        if kind in SEQUENCES:
            return {SEQUENCES[kind]: self._items(value, path)}
        if kind in MAPPINGS:
            return {MAPPINGS[kind]: self._pairs(value, path)}
        if kind is bytes:
            return {"bytes": value.hex()}
        return self._array(value, path)

    def _plain(self, value: Any, path: tuple[str, ...]) -> JsonValue:
        """Return a plain value as JSON; what JSON has no number for becomes its bits."""
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": struct.pack(">d", value).hex()}
        if isinstance(value, str) and not is_text(value):
            raise StateRefused(f"{path_text(path)} is no Unicode text, so it cannot be carried")
        plain: JsonValue = value
        return plain

    def _items(self, values: Any, path: tuple[str, ...]) -> list[JsonValue]:
        return [self.encode(item, (*path, str(place))) for place, item in enumerate(values)]

    def _pairs(self, mapping: Any, path: tuple[str, ...]) -> list[JsonValue]:
        return [
            [self.encode(key, (*path, "key")), self.encode(value, (*path, str(key)))]
            for key, value in mapping.items()
        ]

    def _array(self, value: Any, path: tuple[str, ...]) -> JsonValue:
        if isinstance(value, Tensor):
            return {"tensor": self._name(require_dense(value, path), path)}
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
            content = torch.from_numpy(np.array(value))
            is_scalar = isinstance(value, np.generic)
            return {"scalar" if is_scalar else "array": self._name(content, path)}
        raise StateRefused(
            f"{path_text(path)} is a {type(value).__module__}.{type(value).__qualname__}, which"
            " cannot be carried: only numbers, text, lists, tuples, sets, dicts and tensors can"
        )

    def _name(self, tensor: Tensor, path: tuple[str, ...]) -> str:
        name = plain = path_text(path)
        number = 1
        while name in self.tensors:
            number += 1
            name = f"{plain}#{number}"
        self.tensors[name] = tensor
        return name


def is_text(value: str) -> bool:
    """Whether a string is proper Unicode, as JSON must be."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_dense(tensor: Tensor, path: tuple[str, ...]) -> Tensor:
    """Return a tensor without its gradient; raises StateRefused for all but ordinary ones."""
    is_ordinary = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    if not is_ordinary or tensor.is_meta or tensor.is_quantized:
        raise StateRefused(
            f"{path_text(path)} is a {type(tensor).__qualname__} of layout {tensor.layout} on"
            f" {tensor.device}, which cannot be carried: only ordinary dense tensors can"
        )
    return tensor.detach()


def path_text(path: tuple[str, ...]) -> str:
    """Return a place in a state as people and files name it."""
    return "/".join(path) or "the state"


def decode_value(json: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that this JSON stands for."""
    if isinstance(json, list):
        return [decode_value(item, tensors) for item in json]
    if not isinstance(json, dict):
        return json
    ((tag, content),) = json.items()
    return DECODERS[tag](content, tensors)


def items_decoder(kind: Callable[[Any], Any]) -> Callable[[Any, Mapping[str, Tensor]], Any]:
    """Return what rebuilds a container of items."""
    return lambda items, tensors: kind([decode_value(item, tensors) for item in items])


def pairs_decoder(kind: Callable[[Any], Any]) -> Callable[[Any, Mapping[str, Tensor]], Any]:
    """Return what rebuilds a container of keys and values."""
    return lambda pairs, tensors: kind(
        {decode_value(key, tensors): decode_value(value, tensors) for key, value in pairs}
    )


DECODERS: dict[str, Callable[[Any, Mapping[str, Tensor]], Any]] = {
    **{tag: items_decoder(kind) for kind, tag in SEQUENCES.items()},
    **{tag: pairs_decoder(kind) for kind, tag in MAPPINGS.items()},
    "bytes": lambda content, _: bytes.fromhex(content),
    "float": lambda content, _: struct.unpack(">d", bytes.fromhex(content))[0],
    "tensor": lambda name, tensors: tensors[name],
    "array": lambda name, tensors: tensors[name].cpu().numpy().copy(),
    "scalar": lambda name, tensors: tensors[name].cpu().numpy()[()],
}
