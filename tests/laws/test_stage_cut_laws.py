"""A model is cut into stages of the least largest size; what cannot be cut is refused by name."""

from __future__ import annotations

from inspect import getsource, signature
from itertools import accumulate, combinations, pairwise
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.pipelining import ScheduleInterleaved1F1B
from torch.nn.utils import clip_grad
from torch.optim import SGD

from scavenger.layout import Layout, Schedule
from scavenger.models.layout_time import micro_batches_in_flight
from worker_agent.errors import UnsupportedModel
from worker_agent.pytorch.layouts.chain import (
    balanced_edges,
    cut_model,
    keep_stage,
    refuse_batch_statistics,
)
from worker_agent.pytorch.layouts.pipeline import micro_batch_count, schedule_kind, share_of_batch

layouts = st.builds(
    lambda pipeline, tensor, shard, parts: Layout(
        pipeline, tensor, shard, parts if pipeline > 1 else 1
    ),
    *[st.integers(1, 40)] * 4,
)
pipelines = st.builds(
    lambda replicas, is_cut, is_synced: Layout(
        len(replicas),
        replicas=tuple(replicas),
        cuts=tuple(f"layers.{3 * stage}" for stage in range(1, len(replicas))) if is_cut else (),
        vertical_sync=is_synced,
    ),
    st.lists(st.integers(1, 6), min_size=2, max_size=5),
    st.booleans(),
    st.booleans(),
)


IN_CHUNKS = Layout(2, micro_batches=4, schedule="interleaved", chunks=2)
interleaved = st.builds(
    lambda pipeline, rounds, chunks: Layout(
        pipeline, micro_batches=pipeline * rounds, schedule="interleaved", chunks=chunks
    ),
    *[st.integers(2, 9)] * 3,
)
cut_at_names = st.integers(2, 5).map(
    lambda stages: Layout(stages, cuts=tuple("abcd"[: stages - 1]), schedule="gpipe")
)


@given(layouts | pipelines | interleaved | cut_at_names)
def test_a_layout_is_read_as_it_was_written(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout


NO_LAYOUTS = [
    "",
    "P=2",
    "P=2 T=1 M=4 X=1",
    "P=-1 T=1",
    "2",
    "P=2 T=1 G=1",
    "P=2 T=1 V=1",
    "P=2 T=1 R=1-1 V=0",
    "P=2 T=1 R=1-1 C=a V=1",
]


@pytest.mark.parametrize("text", NO_LAYOUTS)
def test_another_text_is_no_layout(text: str) -> None:
    with pytest.raises(ValueError, match="is no layout: write"):
        Layout.parse(text)


def test_vertical_sync_needs_an_asynchronous_pipeline() -> None:
    with pytest.raises(ValueError, match="set replicas"):
        Layout(2, vertical_sync=True)


@given(pipelines)
def test_each_stage_has_the_weights_that_a_minibatch_uses(layout: Layout) -> None:
    """They lack as many steps as the layout says at most, and have averages of whole turns only.

    With vertical sync they contain what those of the first stage do, but for a turn that the stage
    has not averaged.
    """
    most = 0
    for minibatch in range(100):
        first = layout.version(0, minibatch)
        for stage, own in enumerate(layout.replicas):
            used, steps = layout.version(stage, minibatch), 0
            for back in range(minibatch - layout.delay(stage)):
                steps += back % own == own - 1
            assert used % own == 0
            if layout.vertical_sync:
                assert first - own < used <= min(first, steps * own)
            else:
                assert used == steps * own
            most = max(most, minibatch // own - used // own)
    assert most == layout.staleness


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("P=1 T=1 G=gpipe", "schedule gpipe is of the stages of a synchronous pipeline"),
        ("P=2 T=1 R=1-1 G=gpipe", "schedule gpipe is of the stages of a synchronous pipeline"),
        ("P=2 T=2 M=2 V=2", "an interleaved pipeline has no shards"),
        ("P=2 T=1 S=2 M=2 V=2", "an interleaved pipeline has no shards"),
        ("P=2 T=1 M=2 G=gpipe V=2", "chunks are of the schedule interleaved"),
        ("P=2 T=1 M=3 V=2", "3 micro-batches are no multiple of the 2 stages"),
        ("P=2 T=1 M=2 V=2 C=a", "4 chunks have 3 cuts between them, got 1"),
    ],
)
def test_a_schedule_is_of_layouts_that_can_have_it(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Layout.parse(text)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.data())
def test_no_cut_has_a_smaller_largest_stage(sizes: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(sizes)))

    def largest(edges: tuple[int, ...] | list[int]) -> int:
        return max(sum(sizes[low:high]) for low, high in pairwise(edges))

    found = balanced_edges(sizes, stages)
    every = combinations(range(1, len(sizes)), stages - 1)
    assert len(found) == stages + 1
    assert largest(found) == min(largest([0, *inner, len(sizes)]) for inner in every)


@given(st.integers(1, 60), st.integers(1, 9))
def test_shares_of_a_batch_weigh_like_their_samples(samples: int, count: int) -> None:
    """The plain mean over processes of their weighted means is the mean over the batch."""
    values = [float(number**2) for number in range(samples)]
    shares = [share_of_batch(samples, index, count) for index in range(count)]
    means = [fmean(values[share.samples]) * share.weight for share in shares]
    assert fmean(means) == pytest.approx(fmean(values), rel=1e-12)


@given(st.integers(1, 200), st.integers(1, 40))
def test_a_batch_has_as_many_equal_parts_as_it_can(samples: int, most: int) -> None:
    parts = micro_batch_count(samples, most)
    assert samples % parts == 0
    assert parts == max(each for each in range(1, most + 1) if samples % each == 0)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3))
def test_stages_have_every_weight_and_every_slot_once(
    stages: int, chunks: int, more_layers: int
) -> None:
    schedule: Schedule = "interleaved" if stages > 1 and chunks > 1 else "1f1b"
    chunks = chunks if schedule == "interleaved" else 1
    layout = Layout(stages, micro_batches=stages, schedule=schedule, chunks=chunks)
    layers = layout.chunk_count + more_layers
    whole = nn.Sequential(*[nn.Linear(2, 2) for _ in range(layers)])
    names, values = zip(*whole.named_parameters(), strict=True)
    found: dict[str, torch.Tensor] = {}
    places: list[int] = []
    for stage in range(stages):
        model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(layers)])
        model.load_state_dict(whole.state_dict())
        halves = [list(model.parameters())[half::2] for half in (0, 1)]  # weights, then biases
        optimizer = SGD([{"params": each} for each in halves], lr=0.1)
        cut = cut_model(model, optimizer, None, layout)
        kept_chunks = nn.ModuleList(keep_stage(model, optimizer, cut, stage))
        assert len(kept_chunks) == chunks
        mine = dict(model.named_parameters())
        assert not found.keys() & mine.keys()
        found |= mine
        places += cut.parts[stage].places
        kept = [p for group in optimizer.param_groups for p in group["params"]]
        assert {id(p) for p in kept} == {id(p) for p in mine.values()}
        assert {id(p) for p in kept_chunks.parameters()} == {id(p) for p in mine.values()}
        if stages > 1:
            with pytest.raises(RuntimeError, match="has only some blocks of the model"):
                model(torch.ones(1, 2))
    assert sorted(found) == sorted(names)
    assert all(torch.equal(found[n], v) for n, v in zip(names, values, strict=True))
    assert sorted(places) == list(range(2 * layers))


@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        (Layout(2), "ScheduleGPipe"),
        (Layout(2, micro_batches=4), "Schedule1F1B"),
        (Layout(2, micro_batches=4, schedule="gpipe"), "ScheduleGPipe"),
        (IN_CHUNKS, "ScheduleInterleaved1F1B"),
    ],
)
def test_micro_batches_pass_in_the_order_that_was_asked_for(layout: Layout, kind: str) -> None:
    assert schedule_kind(layout, layout.micro_batches).__name__ == kind
    in_chunks = layout.chunks > 1
    fewer = schedule_kind(layout, 1).__name__
    assert fewer == ("ScheduleLoopedBFS" if in_chunks else "ScheduleGPipe")


@given(interleaved)
def test_an_interleaved_pipeline_keeps_as_many_micro_batches_as_foretold(layout: Layout) -> None:
    schedule: Any = SimpleNamespace(
        n_local_stages=layout.chunks,
        microbatches_per_round=layout.pipeline,
        pp_group_size=layout.pipeline,
        _n_microbatches=layout.micro_batches,
    )
    for stage in range(layout.pipeline):
        order = ScheduleInterleaved1F1B._calculate_single_rank_operations(schedule, stage)
        steps = [1 if each.computation_type.name == "FORWARD" else -1 for each in order if each]
        kept = max(accumulate(steps)) / layout.chunks
        assert kept == micro_batches_in_flight(layout, stage)


def test_clipping_takes_its_norm_where_it_is_replaced() -> None:
    assert "_get_total_norm(" in getsource(clip_grad.clip_grad_norm_)
    taken = list(signature(clip_grad._get_total_norm).parameters)
    assert taken == ["tensors", "norm_type", "error_if_nonfinite", "foreach"]


class NoChain(nn.Module):
    """A model that is no chain, with tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 2), nn.Linear(2, 2)
        self.last.weight = self.first.weight


def test_what_cannot_be_cut_is_refused_by_name() -> None:
    model = NoChain()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnsupportedModel, match="NoChain cannot be traced, so it cannot be cut"):
        cut_model(model, optimizer, None, Layout(2))
    with pytest.raises(UnsupportedModel, match=r"last\.bias: no block has them"):
        cut_model(model, optimizer, [model.first], Layout(2))
    with pytest.raises(UnsupportedModel, match=r"first\.weight is shared by stages 0 and 1"):
        cut_model(model, optimizer, [model.first, model.last], Layout(2))
    with pytest.raises(UnsupportedModel, match="2 blocks cannot be cut into 3 stages"):
        cut_model(model, optimizer, [model.first, model.last], Layout(3))
    with pytest.raises(UnsupportedModel, match="2 blocks cannot be cut into 4 chunks"):
        cut_model(model, optimizer, [model.first, model.last], IN_CHUNKS)
    stranger = SGD([*model.parameters(), nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(UnsupportedModel, match="parameters that belong to no block"):
        cut_model(model, stranger, [model.first, model.last], Layout())
    for keeps in (True, False):
        normed = nn.Sequential(nn.BatchNorm1d(2, track_running_stats=keeps))
        with pytest.raises(UnsupportedModel, match="0 would see the samples of one micro-batch"):
            refuse_batch_statistics(normed, Layout(2, micro_batches=2))
        with pytest.raises(UnsupportedModel, match="samples of one process only"):
            refuse_batch_statistics(normed, Layout(shard=2))
