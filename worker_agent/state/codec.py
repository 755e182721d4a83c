"""Takes nested state apart into JSON and named arrays, and builds it again exactly.

Newcomers and checkpoints get the same encoding. Only plain values, containers of plain values and
dense arrays are accepted, so reading a state from any source runs no code: this is why no pickle
is used, not even a restricted one (docs/decisions/0037). The encoding knows no framework; a
framework says which of its values are arrays.
"""

from __future__ import annotations

import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import JsonValue

from worker_agent.errors import StateRefused

# Each level is up to three of JSON, whose readers give up at 200; and a state that contains itself
# must end somewhere.
MAX_NESTING = 40

_SEQUENCES: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_SEQUENCE_OF: dict[str, Callable[[Any], Any]] = {tag: kind for kind, tag in _SEQUENCES.items()}
_MAPPING_OF: dict[str, Callable[[Any], Any]] = {tag: kind for kind, tag in _MAPPINGS.items()}


@dataclass(frozen=True, slots=True)
class EncodedState:
    """A state in its encoded form.

    Attributes:
        tree: The plain part; where an array was stands its name.
        arrays: The arrays themselves by the path that leads to them, not copied: the framework's
            own, or NumPy's.
    """

    tree: JsonValue
    arrays: Mapping[str, Any]


def encode_state(
    state: object, find_array: Callable[[object, str], Any] = lambda _, __: None
) -> EncodedState:
    """Take a state apart; floats stay exact, infinities and NaN too.

    Args:
        state: What to encode.
        find_array: Given a value that is neither plain nor NumPy's and its path, returns the
            framework's array, None if the value is none, or raises StateRefused.

    Raises:
        StateRefused: The state holds an object of another kind; the message says where.

    >>> encode_state({"rates": (0.5, None)}).tree
    {'dict': [['rates', {'tuple': [0.5, None]}]]}
    """
    encoder = _Encoder(find_array)
    return EncodedState(encoder.encode(state, ()), encoder.arrays)


def decode_state(tree: JsonValue, arrays: Mapping[str, Any]) -> Any:
    """Build the state again; containers are new, the framework's arrays are those given.

    Raises:
        StateRefused: The JSON is not what ``encode_state`` writes, or names an absent array.
    """
    try:
        return _decode(tree, arrays)
    except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
        raise StateRefused(f"the state is not in the form it is written in: {error!r}") from error


@dataclass(slots=True)
class _Encoder:
    find_array: Callable[[object, str], Any]
    arrays: dict[str, Any] = field(default_factory=dict)

    def encode(self, value: Any, path: tuple[str, ...]) -> JsonValue:
        kind = type(value)  # not isinstance: a subclass would come back as its base
        plain: JsonValue = value
        if value is None or kind is bool or kind is int:
            return plain
        if kind is float:
            return plain if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if kind is bytes:
            return {"bytes": value.hex()}
        if kind is str:
            try:
                value.encode()
            except UnicodeEncodeError:
                why = "is no Unicode text, so it cannot be saved or sent to other workers"
                raise StateRefused(f"{_path_text(path)} {why}") from None
            return plain
        if len(path) > MAX_NESTING:
            place = _path_text(path[:4])
            raise StateRefused(f"{place}/… is nested deeper than {MAX_NESTING} levels")
        if kind in _MAPPINGS:  # as pairs, because keys need not be text
            pairs: list[JsonValue] = [
                [self.encode(key, (*path, "key")), self.encode(item, (*path, str(key)))]
                for key, item in value.items()
            ]
            return {_MAPPINGS[kind]: pairs}
        if kind is list or kind in _SEQUENCES:
            items = [self.encode(item, (*path, str(place))) for place, item in enumerate(value)]
            return items if kind is list else {_SEQUENCES[kind]: items}
        return self._array(value, _path_text(path))

    def _array(self, value: Any, path: str) -> JsonValue:
        tag, array = "tensor", self.find_array(value, path)
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
            tag = "array" if isinstance(value, np.ndarray) else "scalar"
            array = np.array(value)
        if array is None:
            raise StateRefused(
                f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which cannot"
                " be saved or sent to other workers: only numbers, text, lists, tuples, sets, dicts"
                " and tensors can"
            )
        # Two places may have one path, such as a key 1 and a key "1".
        name, number = path, 1
        while name in self.arrays:
            number += 1
            name = f"{path}#{number}"
        self.arrays[name] = array
        return {tag: name}


def _path_text(path: tuple[str, ...]) -> str:
    return "/".join(path) or "the state"


def _decode(node: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_decode(item, arrays) for item in node]
    if not isinstance(node, dict):
        return node
    ((tag, content),) = node.items()
    match tag:
        case "bytes":
            return bytes.fromhex(content)
        case "float":
            return struct.unpack(">d", bytes.fromhex(content))[0]
        case "tensor":
            return arrays[content]
        case "array":
            return np.asarray(arrays[content]).copy()
        case "scalar":
            return np.asarray(arrays[content])[()]
        case "tuple" | "set" | "frozenset":
            return _SEQUENCE_OF[tag](_decode(item, arrays) for item in content)
        case _:
            pairs = {_decode(key, arrays): _decode(item, arrays) for key, item in content}
            return _MAPPING_OF[tag](pairs)
