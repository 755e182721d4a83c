"""Parts of weights make the whole again, and so do the states of a worker's processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD

from scavenger.layout import Layout
from worker_agent.errors import StateRefused, UnsupportedModel
from worker_agent.pytorch.layouts.chain import StagePart
from worker_agent.pytorch.layouts.stage_state import BY_ROWS, WholeState
from worker_agent.pytorch.layouts.tensor import Cut, ShardSpec, TensorGroup, share_weights

specs = st.builds(ShardSpec, st.integers(0, 1), st.integers(1, 3))


def weight(spec: ShardSpec, count: int, size: int, other: int) -> Tensor:
    sizes = [other, other]
    sizes[spec.dim] = size * spec.blocks * count
    return torch.arange(float(sizes[0] * sizes[1])).view(sizes)


@given(specs, st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_parts_of_a_weight_make_the_whole(
    spec: ShardSpec, count: int, size: int, other: int
) -> None:
    whole = weight(spec, count, size, other)
    parts = [spec.part(whole, index, count) for index in range(count)]
    assert torch.equal(spec.whole(parts), whole)
    assert sum(part.numel() for part in parts) == whole.numel()


@given(st.integers(1, 6), st.integers(1, 8))
def test_rows_are_divided_as_pytorch_divides_them(rows: int, count: int) -> None:
    """``fully_shard`` divides like ``chunk``; the last processes may have less, or nothing."""
    whole = torch.arange(2.0 * rows).view(rows, 2)
    parts = [BY_ROWS.part(whole, index, count) for index in range(count)]
    assert all(torch.equal(*pair) for pair in zip(parts, whole.chunk(count), strict=False))
    assert torch.equal(BY_ROWS.whole(parts), whole)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.data())
def test_states_of_all_processes_make_that_of_the_model_and_back(
    stages: int, tensor: int, shard: int, data: st.DataObject
) -> None:
    shards: dict[str, ShardSpec] = {}
    whole: dict[str, dict[str, Tensor]] = {"parameters": {}, "buffers": {}}
    parts, slots = [], []
    for stage in range(stages):
        names = [f"{stage}.{number}" for number in range(data.draw(st.integers(1, 3)))]
        for name in names:
            spec = data.draw(specs)
            if data.draw(st.booleans()):
                shards[name] = spec
            whole["parameters"][name] = weight(spec, tensor, 1, 2)
            slots.append({"step": torch.tensor(3.0), "mean": whole["parameters"][name] + 1})
        whole["buffers"][f"{stage}.seen"] = torch.tensor([stage])
        places = tuple(range(len(slots) - len(names), len(slots)))
        known = frozenset([*names, f"{stage}.seen"])
        parts.append(StagePart(known, places, tuple(names)))
    state = {**whole, "optimizer": {"kind": "any", "slots": slots}, "carried": {"at": 1}}
    layout = Layout(stages, tensor, shard)
    made = WholeState(tuple(parts), shards, layout)
    own = [made.part(state, position) for position in range(layout.processes)]
    joined = made.join(own)
    for kind in whole:
        assert list(joined[kind]) == list(whole[kind])
        assert all(torch.equal(joined[kind][name], t) for name, t in whole[kind].items())
    for mine, theirs in zip(joined["optimizer"]["slots"], slots, strict=True):
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
    assert joined["carried"] == {"at": 1}
    made.refuse_unknown(state)
    state["parameters"]["other"] = torch.ones(1)
    with pytest.raises(StateRefused, match="parameters/other is in the state and not in this"):
        made.refuse_unknown(state)


class Named(nn.Module):
    """Modules with names that a plan cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(4, 6), nn.LayerNorm(6)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"up": "colum"}, "'colum' is none of column, row, embedding, head, vocabulary, qkv"),
        ({"up": "column"}, "up has 6 rows, which 4 processes cannot share"),
        ({"up": "embedding"}, "cuts up as embedding, and it is Linear, no Embedding"),
        ({"norm": "column"}, "cuts norm as column, and it is LayerNorm, no Linear"),
        ({"other": "column"}, "no module has a name that says how its weights can be shared"),
        (None, "no module has a name that says how its weights can be shared"),
    ],
)
def test_what_cannot_be_shared_is_refused_by_name(plan: dict[str, Cut] | None, why: str) -> None:
    model = Named()
    with pytest.raises(UnsupportedModel, match=why):
        share_weights(model, SGD(model.parameters(), lr=0.1), TensorGroup(None, 0, 4), plan)


class Speaker(nn.Module):
    """Names of well-known models: heads that are counted, and scores tied to a vocabulary."""

    def __init__(self, heads: int, tokens: int) -> None:
        super().__init__()
        self.attention: Any = nn.Module()
        self.attention.num_heads = heads
        self.attention.q_proj, self.attention.o_proj = nn.Linear(12, 12), nn.Linear(12, 12)
        self.places = nn.Embedding(tokens, 12)
        self.lm_head = nn.Linear(12, tokens, bias=False)


def share(model: nn.Module, plan: dict[str, Cut] | None) -> set[str]:
    optimizer = SGD(model.parameters(), lr=0.1)
    return set(share_weights(model, optimizer, TensorGroup(None, 0, 2), plan))


LAYERS = {"attention.q_proj.weight", "attention.q_proj.bias", "attention.o_proj.weight"}


def test_heads_are_shared_whole() -> None:
    model = Speaker(heads=4, tokens=6)
    assert share(model, None) == {*LAYERS, "lm_head.weight"}
    assert model.attention.num_heads == 2
    with pytest.raises(UnsupportedModel, match="attention has 3 of num_heads, which 2 processes"):
        share(Speaker(heads=3, tokens=6), None)


def test_a_vocabulary_stays_whole_that_is_odd_or_tied_to_a_layer_that_does() -> None:
    assert share(Speaker(heads=4, tokens=7), None) == LAYERS
    tied = Speaker(heads=4, tokens=6)
    tied.places.weight = tied.lm_head.weight
    assert share(tied, None) == LAYERS
    assert tied.places.weight is tied.lm_head.weight
    with pytest.raises(UnsupportedModel, match="lm_head and places have the same weights"):
        share(tied, {"lm_head": "head"})
    assert share(tied, {"lm_head": "head", "places": "embedding"}) == {
        "lm_head.weight",
        "places.weight",
    }
    assert tied.places.weight is tied.lm_head.weight
