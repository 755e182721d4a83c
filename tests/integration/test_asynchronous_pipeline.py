"""Processes of an asynchronous pipeline, beside the recursion that PipeDream follows."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad

from scavenger.layout import PLAIN, Layout
from tests.conductor import Conductor
from tests.integration.forked import fork
from tests.integration.recursion import Recursion
from tests.integration.shared import SAMPLES, make_model, make_optimizer, samples, start_with
from worker_agent.errors import UnsupportedModel
from worker_agent.pytorch.layouts.world import refuse_clipping

PROJECT = Path(__file__).parents[2]
BATCH = 16
SCRIPT = """
import json, os, sys
from torch.utils.checkpoint import checkpoint
import worker_agent
from tests.integration.shared import loss, make_model, make_optimizer, own_weights, samples

model = make_model()
optimizer = make_optimizer(sys.argv[1], model)
place = os.environ["SCAVENGER_POSITION"]
inputs, targets = samples()
with worker_agent.session() as job, open(f"{place}.jsonl", "a", buffering=1) as rows:
    job.prepare(model, optimizer, loss=loss)
    steps, held, batch = job.model_steps, [], inputs[:16].clone()
    mix = model[1]
    if "checkpointed" in sys.argv:  # computed again in the backward pass, with the same weights
        forward = mix.forward
        mix.forward = lambda x: checkpoint(forward, x, use_reentrant=False)

    def count_versions(*_):
        used, kept = [each.weights for each in steps.in_flight], steps.versions.values()
        held.append(len({id(each) for each in [*used, *kept]}))

    if hasattr(steps, "blocks") and hasattr(steps, "in_flight"):
        steps.blocks.register_forward_pre_hook(count_versions)
    for indices in job.batches(len(inputs), global_batch=16, epochs=1000):
        facts = {"iteration": job.iteration, "indices": indices.tolist()}
        facts |= {"weights": own_weights(model), "begun": getattr(steps, "begun", 0)}
        if "skipping" in sys.argv and job.iteration >= 5 and job.directive.generation == 1:
            rows.write(json.dumps({**facts, "skipped": True}) + "\\n")
            continue
        optimizer.zero_grad()
        said = job.step(batch[: len(indices)].copy_(inputs[indices]), targets[indices])
        optimizer.step()
        if hasattr(steps, "in_flight"):
            count_versions()
        facts |= {"loss": float(said), "versions": max(held, default=0)}
        held.clear()
        facts["sending"] = len(getattr(steps, "sending", ()))
        rows.write(json.dumps(facts) + "\\n")
        job.log(loss=said)
"""


def run(
    directory: Path, layout: Layout, script: str, *turns: int, **variables: str
) -> float | None:
    """Train for so many iterations in each generation, with an optimizer and peculiarities.

    Returns:
        The staleness that the worker reports, if its gradients come late.
    """
    conductor = Conductor(
        directory,
        ["-c", SCRIPT, *script.split()],
        dataset_size=SAMPLES,
        purpose="probe",
        launch=start_with(layout, fork),
        environment={
            "PYTHONPATH": str(PROJECT),
            "SCAVENGER_STRATEGY": "all_reduce" if layout.is_plain else "pipedream",
            **variables,
        },
    )
    with conductor:
        conductor.start("w0")
        for iterations in turns:
            generation = conductor.order(["w0"], BATCH, split_every=5, report_after=iterations)
            conductor.wait_applied(generation, iterations)
        return conductor.reports[-1].progress.metrics.get("staleness")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return what a process has written down, but a line that it was ended in."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def read_rows(directory: Path, layout: Layout) -> dict[int, dict[int, dict[str, Any]]]:
    """Return what the processes have written down, by iteration and position."""
    found: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
    for position in range(layout.processes):
        for row in read_lines(directory / f"{position}.jsonl"):
            found[row["iteration"]][position] = row
    whole = {at: rows for at, rows in sorted(found.items()) if len(rows) == layout.processes}
    assert list(whole) == list(range(len(whole)))
    return whole


def recursion(layout: Layout, optimizer: str) -> Recursion:
    """Return one process that trains as an asynchronous pipeline of the script would."""
    return Recursion(layout, make_model(), partial(make_optimizer, optimizer), *samples())


def test_clipping_is_refused_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_get_total_norm", "_group_tensors_by_device_and_dtype"):
        monkeypatch.setattr(clip_grad, name, getattr(clip_grad, name))
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    refuse_clipping()
    for clip in (clip_grad.clip_grad_norm_, clip_grad.clip_grad_value_):
        with pytest.raises(UnsupportedModel, match="leave that out"):
            clip([parameter], 1.0)


# Most copies of weights that a process of each stage holds, and steps that the most late gradient
# lacks. With vertical sync later stages hold a version beside the copies: the weights in place.
LAYOUTS = [
    ("P=2 T=1 R=2-1 C=1.qkv", "adamw checkpointed skipping", (2, 1), 1),
    ("P=2 T=1 R=2-1 V=1 C=2.norm", "sgd checkpointed skipping", (2, 2), 3),
    *(
        pytest.param(*each, marks=pytest.mark.slow)
        for each in (
            ("P=2 T=1 R=1-1 C=2.norm", "sgd checkpointed skipping", (2, 1), 1),
            ("P=3 T=1 R=1-1-1 C=1.qkv,2.norm", "sgd", (3, 2, 1), 2),
            ("P=2 T=1 R=1-2 C=3.scores", "sgd", (3, 1), 2),
            ("P=2 T=1 R=2-2 C=1.qkv", "adamw", (2, 1), 1),
            ("P=3 T=1 R=2-1-1 C=1.qkv,3.scores", "sgd", (2, 2, 1), 1),
            ("P=4 T=1 R=1-1-1-1 C=1.qkv,2.norm,3.scores", "adamw", (4, 3, 2, 1), 3),
            ("P=2 T=1 R=1-1 V=1 C=2.norm", "adamw checkpointed skipping", (2, 1), 1),
            ("P=3 T=1 R=1-1-1 V=1 C=1.qkv,2.norm", "sgd", (3, 2, 2), 2),
            ("P=2 T=1 R=1-2 V=1 C=3.scores", "adamw", (3, 1), 2),
            ("P=3 T=1 R=2-1-1 V=1 C=1.qkv,3.scores", "sgd", (2, 2, 2), 3),
        )
    ),
]


@pytest.mark.parametrize(("layout", "script", "copies", "staleness"), LAYOUTS)
def test_an_asynchronous_pipeline_trains_as_its_recursion_to_the_last_bit(
    tmp_path: Path, layout: str, script: str, copies: tuple[int, ...], staleness: int
) -> None:
    """Through a change of generation, before which no minibatch is lost."""
    told = Layout.parse(layout)
    assert run(tmp_path, told, script, 9, 6) == staleness
    alone, losses, emptied = recursion(told, script.split()[0]), {}, 0
    lag, held = told.delay(0), [0] * told.processes
    for iteration, rows in read_rows(tmp_path, told).items():
        begun = rows[0]["begun"]
        assert {row["begun"] for row in rows.values()} == {begun}
        if begun == 0:
            alone.empty()
            emptied += 1
        for position, row in rows.items():
            stage = told.stage_of(position)
            expected = alone.history[stage][alone.steps_before(stage, begun)]
            for value, mine in zip(row["weights"].values(), expected, strict=True):
                assert torch.equal(torch.tensor(value, dtype=torch.float64), mine)
            if "skipped" in row:
                continue
            # Only what others may not have received yet is kept in memory.
            assert row["sending"] <= (lag + 1) * (told.processes + 2)
            held[position] = max(held[position], row["versions"])
        if "skipped" in rows[0]:
            continue
        indices = rows[0]["indices"]
        losses[iteration] = alone.train(indices)
        expected_loss = losses[iteration if begun < lag else iteration - lag]
        assert {row["loss"] for row in rows.values()} == {expected_loss}
    assert held == [copies[told.stage_of(position)] for position in range(told.processes)]
    assert emptied == 2
    assert iteration >= 14


@pytest.mark.slow
def test_one_process_goes_on_from_the_checkpoint_of_an_asynchronous_pipeline(
    tmp_path: Path,
) -> None:
    kept = {"SCAVENGER_CHECKPOINTS": str(tmp_path / "kept"), "SCAVENGER_CHECKPOINT_EVERY": "0.05"}
    told, places = Layout.parse("P=2 T=1 R=2-1 C=1.qkv"), [tmp_path / "first", tmp_path / "second"]
    for place, layout in zip(places, (told, PLAIN), strict=True):
        place.mkdir()
        run(place, layout, "sgd", 25, **kept)
    alone, rows = recursion(told, "sgd"), read_rows(places[0], told)
    (first, *_) = read_lines(places[1] / "0.jsonl")
    assert first["iteration"] > 0
    for iteration in range(first["iteration"]):
        if rows[iteration][0]["begun"] == 0:
            alone.empty()
        alone.train(rows[iteration][0]["indices"])
    alone.empty()
    mine = [weight for stage in range(2) for weight in alone.weights(stage)]
    for value, expected in zip(first["weights"].values(), mine, strict=True):
        assert torch.equal(torch.tensor(value, dtype=torch.float64), expected)
