"""States of any shape come back from JSON and tensors exactly as they were."""

from __future__ import annotations

import contextlib
import math
import struct
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_json

from worker_agent.errors import StateRefused
from worker_agent.pytorch.tensors import encode_torch_state as encode_state
from worker_agent.state.codec import decode_state

JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8,
    torch.bool, torch.complex64,
]  # fmt: skip
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary()
)
keys = st.recursive(scalars, lambda inner: st.tuples(inner, inner), max_leaves=3)
tensors = st.builds(
    lambda dtype, shape, seed: (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(9).to(dtype)
    ),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 99),
)
arrays = st.sampled_from(["float32", "int64", "bool", "uint32"]).map(
    lambda dtype: np.arange(4).reshape(2, 2).astype(dtype)
)
numbers = st.floats(width=32).map(np.float32) | st.integers(0, 255).map(np.uint8)
leaves = scalars | tensors | arrays | numbers


def containers(inner: Any) -> Any:
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(keys, max_size=3)
        | st.frozensets(keys, max_size=3)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(keys, st.integers(), max_size=3).map(Counter)
    )


trees = st.recursive(leaves, containers, max_leaves=20)


def is_same(one: Any, other: Any) -> bool:
    """Whether two states are equal in every bit and every type."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        is_nan = math.isnan(one) and math.isnan(other)
        return is_nan or struct.pack(">d", one) == struct.pack(">d", other)
    if isinstance(one, dict):
        return is_same([list(pair) for pair in one.items()], [list(p) for p in other.items()])
    if isinstance(one, set | frozenset):
        return sorted(map(repr, one)) == sorted(map(repr, other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


@given(trees)
@settings(max_examples=300)
def test_a_state_comes_back_exactly(state: Any) -> None:
    encoded = encode_state(state)
    travelled = JSON.validate_json(to_json(encoded.tree))
    assert is_same(decode_state(travelled, encoded.arrays), state)


@given(trees, st.data())
@settings(max_examples=100)
def test_an_unknown_object_is_refused_with_its_place(state: Any, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, 3))
    with pytest.raises(StateRefused, match=f"outer/{place}/inner is a builtins.object"):
        encode_state({"outer": [*[state] * place, {"inner": object()}]})


names = ["dict", "tuple", "tensor", "array", "float", "set", "counter", "bytes", "?"]
tags = st.sampled_from(names)
foreign = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(tags, inner, max_size=2),
    max_leaves=12,
)


@given(foreign)
@settings(max_examples=200)
def test_foreign_json_is_decoded_or_refused_and_nothing_else(json: JsonValue) -> None:
    with contextlib.suppress(StateRefused):
        decode_state(json, {})


@pytest.mark.parametrize(
    "state",
    [
        torch.zeros(2, 2).to_sparse(),
        torch.empty(2, device="meta"),
        [lambda: None],
        np.array(["text"]),
        torch.Size([1]),
        "\ud800",
    ],
    ids=["sparse", "meta", "function", "array of text", "subclass", "half a character"],
)
def test_what_cannot_be_carried_is_refused(state: object) -> None:
    with pytest.raises(StateRefused, match="cannot be saved or sent"):
        encode_state(state)


def test_a_state_that_contains_itself_is_refused() -> None:
    state: list[Any] = []
    state.append(state)
    with pytest.raises(StateRefused, match="nested deeper"):
        encode_state(state)


def test_equal_paths_get_names_of_their_own() -> None:
    state = {"a/b": torch.zeros(1), "a": {"b": torch.ones(1), 1: torch.ones(2), "1": torch.ones(3)}}
    encoded = encode_state(state)
    assert list(encoded.arrays) == ["a/b", "a/b#2", "a/1", "a/1#2"]
    assert is_same(decode_state(encoded.tree, encoded.arrays), state)
