"""Workers of several processes that share a model, beside one process that trains alone."""

from __future__ import annotations

import itertools
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from scavenger.layout import PLAIN, Layout
from tests.conductor import Conductor, Start
from tests.integration.forked import fork
from tests.integration.shared import (
    SAMPLES,
    WorkerProcesses,
    loss,
    make_model,
    make_optimizer,
    own_part,
    samples,
    start_with,
)
from worker_agent.supervisor.layout import read_next_layout
from worker_agent.training.elastic import EXIT_STARTS_AGAIN

BATCH = 16
SCRIPT = """
import json, os, sys
import worker_agent
from torch.nn.utils import clip_grad_norm_
from tests.integration.shared import (
    PLAN, loss, make_model, make_optimizer, own_weights, samples,
)

model = make_model(sys.argv[1])
optimizer = make_optimizer(sys.argv[1], model)
name = f"{os.environ['SCAVENGER_WORKER']}.{os.environ.get('SCAVENGER_POSITION', '0')}"
inputs, targets = samples()
with worker_agent.session() as job, open(f"{name}.jsonl", "a", buffering=1) as rows:
    plan = PLAN if sys.argv[1] == "adamw" else {**PLAN, "*.scores": "head"}
    job.prepare(model, optimizer, loss=loss, tensor_plan=plan)
    for indices in job.batches(len(inputs), global_batch=16, epochs=1000):
        turn = job.directive.generation, job.directive.revision
        weights = own_weights(model)
        facts = {"iteration": job.iteration, "turn": turn, "indices": indices.tolist()}
        if job.evaluates and job.iteration % 3 == 0:
            facts["predicted"] = job.predict(inputs[:5]).tolist()
        rows.write(json.dumps({**facts, "weights": weights}) + "\\n")
        optimizer.zero_grad(set_to_none=job.iteration % 2 == 0)
        said = job.step(inputs[indices], targets[indices])
        clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        job.log(loss=said)
"""

INTERLEAVED = Layout(2, micro_batches=4, schedule="interleaved", chunks=2)
CHECKPOINTED = (
    Layout(2, micro_batches=2),
    PLAIN,
    Layout(tensor=2),
    INTERLEAVED,
    Layout(shard=2),
)
SCALED = """
import json, math, os, sys
import torch
import worker_agent
from torch.distributed.tensor import DTensor
from tests.integration.shared import PLAN, loss, make_model, make_optimizer, samples

model, position = make_model(), int(os.environ["SCAVENGER_POSITION"])
optimizer, scaler = make_optimizer("sgd", model), torch.amp.GradScaler("cpu", init_scale=64.0)
inputs, targets = samples()
with worker_agent.session() as job, open(f"{position}.jsonl", "a", buffering=1) as rows:
    job.prepare(model, optimizer, scaler=scaler, loss=loss, tensor_plan=PLAN)

    def overflow(gradient):
        is_odd = job.iteration == 3 and position == int(sys.argv[1])
        return gradient * math.inf if is_odd else gradient

    def watch_output(block, inputs, output):
        output.register_hook(overflow)

    parameter = next(iter(model.parameters()))
    if isinstance(parameter, DTensor):  # the backward pass knows another, that is whole
        for block in model:
            block.register_forward_hook(watch_output)
    else:
        parameter.register_hook(overflow)
    for indices in job.batches(len(inputs), global_batch=16, epochs=1000):
        before = parameter.detach().clone()
        optimizer.zero_grad()
        job.step(inputs[indices], targets[indices])
        scaler.step(optimizer)
        scaler.update()
        moved = float((parameter.detach() - before).abs().max())
        facts = {"iteration": job.iteration, "moved": moved, "scale": scaler.get_scale()}
        rows.write(json.dumps(facts) + "\\n")
        job.log(loss=0.0)
"""


class SharedJob:
    """A job whose workers share a model each, and what its processes have written down."""

    def __init__(self, directory: Path, layout: Layout, optimizer: str, **variables: str) -> None:
        self.directory, self.layout, self.optimizer = directory, layout, optimizer
        self.changed: dict[int, Layout] = {}  # from which generation on
        self.conductor = Conductor(
            directory,
            ["-c", SCRIPT, optimizer],
            dataset_size=SAMPLES,
            purpose="probe",
            launch=start_with(layout, fork),
            environment=variables,
        )

    def train(self, *workers: str, iterations: int = 4, batch: int = BATCH, **changes: Any) -> int:
        """Let these workers train together for some iterations; returns their generation."""
        for worker in workers:
            if worker not in self.conductor.processes:
                self.conductor.start(worker)
        generation = self.conductor.order(list(workers), batch, report_after=iterations, **changes)
        self.conductor.wait_applied(generation, iterations)
        return generation

    def iterations(self) -> Iterator[dict[str, dict[str, Any]]]:
        """Yield what each worker had before each iteration, of the turn that counted."""
        found: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
        for path in self.directory.glob("*.jsonl"):
            worker = path.name.split(".")[0]
            for row in self.conductor.rows(path.stem):
                row["weights"] = {int(path.stem.split(".")[1]): row["weights"]}
                known = found[row["iteration"]].setdefault(worker, row)
                if known["turn"] < row["turn"]:
                    known = found[row["iteration"]][worker] = row
                if known["turn"] == row["turn"]:
                    known["weights"] |= row["weights"]
                    before = [each for each in self.changed if each <= row["turn"][0]]
                    known["layout"] = self.changed[max(before)] if before else self.layout
        for iteration in sorted(found)[:-1]:  # the last may have been cut short
            newest = max(row["turn"] for row in found[iteration].values())
            yield {w: row for w, row in found[iteration].items() if row["turn"] == newest}

    def steps(self, generation: int) -> Iterator[tuple[int, float, float]]:
        """Yield iteration and both norms, as the leader has reported them."""
        for report in self.conductor.reports:
            if report.progress.generation == generation:
                told = report.steps
                yield from zip(told.iteration, told.local_norm_sq, told.mean_norm_sq, strict=True)


class Alone:
    """One process that trains the whole model."""

    def __init__(self, optimizer: str) -> None:
        self.model = make_model()
        self.optimizer = make_optimizer(optimizer, self.model)
        self.inputs, self.targets = samples()

    def gradient(self, indices: list[int]) -> Tensor:
        self.optimizer.zero_grad()
        loss(self.model(self.inputs[indices]), self.targets[indices]).backward()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return torch.cat([each.reshape(-1) for each in gradients])

    def step(self) -> None:
        clip_grad_norm_(self.model.parameters(), 0.3)
        self.optimizer.step()

    def difference(self, row: dict[str, Any]) -> float:
        """Return the largest difference of a weight of any process; they have all of them."""
        mine = {name: p.detach() for name, p in self.model.named_parameters()}
        apart = [0.0]
        assert mine.keys() == {name for own in row["weights"].values() for name in own}
        for position, own in row["weights"].items():
            for name, value in own.items():
                expected = own_part(name, mine[name], position, row["layout"])
                found = torch.tensor(value, dtype=torch.float64).view(expected.shape)
                apart.extend((found - expected).abs().flatten().tolist())
        return max(apart)

    def train(self, iterations: Iterable[dict[str, dict[str, Any]]]) -> int:
        """Train on what a job has trained on, comparing weights; returns how many iterations."""
        count = 0
        for rows in iterations:
            for row in rows.values():
                assert self.difference(row) < 1e-10
                if "predicted" in row:
                    outputs = self.model(self.inputs[:5]).detach()
                    predicted = torch.tensor(row["predicted"], dtype=torch.float64)
                    assert (outputs - predicted).abs().max() < 1e-10
            self.gradient([index for row in rows.values() for index in row["indices"]])
            self.step()
            count += 1
        return count


# Every layout of up to four processes of two along each axis, then some others.
EVERY_LAYOUT = [
    Layout(stages, shards, parts, micro_batches=micro_batches)
    for stages, shards, parts in itertools.product((1, 2), repeat=3)
    for micro_batches in (1, 2, 4)
    if 1 < stages * shards * parts <= 4 and (stages > 1 or micro_batches == 1)
]
OTHERS = ["P=1 T=1 S=3", "P=1 T=4", "P=2 T=1 M=3", "P=4 T=1 M=4", "P=2 T=1 M=4 G=gpipe"]
OTHERS += ["P=2 T=1 M=4 V=2"]
USUAL = ("P=2 T=1 M=2", "adamw")  # test_chaos.py trains with tensor and sharded processes


@pytest.mark.parametrize(
    ("layout", "optimizer"),
    [
        pytest.param(*each, marks=() if each == USUAL else pytest.mark.slow)
        for each in itertools.product((*map(str, EVERY_LAYOUT), *OTHERS), ("adamw", "sgd"))
    ],
)
def test_workers_that_share_a_model_train_as_one_process_while_their_number_changes(
    tmp_path: Path, layout: str, optimizer: str
) -> None:
    job = SharedJob(tmp_path, Layout.parse(layout), optimizer)
    with job.conductor:
        # Micro-batches are the shards of one worker, parts of the batch those of several.
        alone_too = job.train("w0", split_every=1) if job.layout.has_noise_of_parts else 0
        both = job.train("w0", "w1")
        job.train("w1")
        job.train("w1", "w2")
    assert Alone(optimizer).train(job.iterations()) >= 12
    alone, told = Alone(optimizer), [*job.steps(alone_too), *job.steps(both)]
    assert told
    for iteration, rows in enumerate(job.iterations()):
        for step, local, mean in told:
            if step == iteration + 1:
                each = list(rows.values())
                parts = [row["indices"] for row in each]
                parts = parts if len(each) > 1 else shards_of(each[0], job.layout)
                gradients = torch.stack([alone.gradient(part) for part in parts])
                assert local == pytest.approx(float((gradients**2).sum(1).mean()), rel=1e-10)
                assert mean == pytest.approx(float((gradients.mean(0) ** 2).sum()), rel=1e-10)
        alone.gradient([index for row in rows.values() for index in row["indices"]])
        alone.step()


def test_an_interleaved_pipeline_follows_every_size_of_a_batch(tmp_path: Path) -> None:
    """Four, two, three and one parts: the schedule of each is another."""
    job = SharedJob(tmp_path, INTERLEAVED, "sgd")
    with job.conductor:
        for batch in (16, 10, 6, 5):
            job.train("w0", batch=batch)
    assert Alone("sgd").train(job.iterations()) >= 12


def supervised(start: Start) -> WorkerProcesses:
    """Start a worker as its supervisor does: in the layout it asked for, with its own checkpoints.

    One whose name is that of a file cannot write any.
    """
    worker = start.environment["SCAVENGER_WORKER"]
    following = start.directory / f"{worker}.next"
    layout = read_next_layout(following) or PLAIN
    following.unlink(missing_ok=True)
    ours = {
        "SCAVENGER_NEXT_LAYOUT": str(following),
        "SCAVENGER_CHECKPOINTS": str(start.directory / f"{worker}.kept"),
    }
    return start_with(layout, fork)(replace(start, environment={**start.environment, **ours}))


def test_workers_change_their_layout_at_one_iteration_and_lose_none(tmp_path: Path) -> None:
    job = SharedJob(tmp_path, PLAIN, "adamw")
    job.conductor.launch = supervised
    cut = Layout(2, micro_batches=2)
    told: dict[str, Any] = {"stack": str(cut), "layout": str(cut)}
    with job.conductor:
        first = job.train("w0", "w1", layout=str(PLAIN))
        job.conductor.order(["w0", "w1"], BATCH, **told)
        ended = [job.conductor.processes.pop(worker).wait() for worker in ("w0", "w1")]
        assert ended == [EXIT_STARTS_AGAIN] * 2
        job.conductor.hellos.clear()
        again = job.train("w0", "w1", repairs=True, **told)
        job.changed[again] = cut
    found = list(job.iterations())
    assert [set(rows) for rows in found] == [{"w0", "w1"}] * len(found)
    turns = [row["turn"][0] for rows in found for row in rows.values()]
    assert set(turns) == {first, again}
    for worker in ("w0", "w1"):  # no iteration was done twice
        rows = job.conductor.rows(f"{worker}.0")
        assert [row["iteration"] for row in rows] == list(range(len(rows)))
    assert Alone("adamw").train(found) >= 8


def test_a_leader_that_cannot_write_a_checkpoint_stays_in_its_layout_and_trains_on(
    tmp_path: Path,
) -> None:
    job = SharedJob(tmp_path, PLAIN, "adamw")
    job.conductor.launch = supervised
    (tmp_path / "w0.kept").write_text("no directory")
    with job.conductor:
        first = job.train("w0", "w1", layout=str(PLAIN))
        refused = job.conductor.order(["w0", "w1"], BATCH, stack="P=2 T=1", layout="P=2 T=1")
        report = job.conductor.wait(
            lambda: next((r for r in job.conductor.reports if r.refused == refused), None)
        )
        reached = report.progress.iteration
        after = job.conductor.wait(
            lambda: next(
                (r for r in job.conductor.reports if r.progress.iteration > reached + 3), None
            )
        )
        assert after.progress.generation == first
        assert not job.conductor.has_failed()
    assert Alone("adamw").train(job.iterations()) >= 8


def shards_of(row: dict[str, Any], layout: Layout) -> list[list[int]]:
    """Return the samples of each micro-batch."""
    indices = row["indices"]
    parts = next(m for m in range(layout.micro_batches, 0, -1) if len(indices) % m == 0)
    size = len(indices) // parts
    return [indices[at : at + size] for at in range(0, len(indices), size)]


KILLED = ["P=2 T=1 M=2", "P=1 T=2", "P=1 T=1 S=2", "P=2 T=2 M=2", "P=2 T=1 S=2", "P=2 T=1 M=4 V=2"]
POSITIONS = [(text, at) for text in KILLED for at in range(Layout.parse(text).processes)]


@pytest.mark.slow  # `make chaos` kills them, too
@pytest.mark.parametrize(("layout", "position"), POSITIONS)
def test_a_killed_process_takes_its_worker_out_and_the_others_redo_the_iteration(
    tmp_path: Path, layout: str, position: int
) -> None:
    job = SharedJob(tmp_path, Layout.parse(layout), "adamw")
    with job.conductor:
        job.train("w0", "w1")
        lost = job.conductor.processes.pop("w1")
        assert isinstance(lost, WorkerProcesses)
        lost.processes[position].send_signal(signal.SIGKILL)
        assert all(process.wait() for process in lost.processes), "no process is left"
        job.train("w0", repairs=True)
        job.train("w0", "w2")
    assert Alone("adamw").train(job.iterations()) >= 11


@pytest.mark.slow  # WholeState has a law
def test_a_checkpoint_of_a_layout_is_one_of_the_whole_model(tmp_path: Path) -> None:
    """Each layout goes on from a checkpoint of another one, slots included."""
    kept = {"SCAVENGER_CHECKPOINTS": str(tmp_path / "kept"), "SCAVENGER_CHECKPOINT_EVERY": "0.05"}
    trained: dict[int, dict[str, dict[str, Any]]] = {}
    for number, layout in enumerate(CHECKPOINTED):
        place = tmp_path / str(number)
        place.mkdir()
        job = SharedJob(place, layout, "adamw", **kept)
        with job.conductor:
            job.train("w0", iterations=12)
            job.conductor.wait(lambda: any((tmp_path / "kept").rglob("*.safetensors")))
            job.train("w0", iterations=12)
        first = min(row["iteration"] for row in job.conductor.rows("w0.0"))
        assert (first > 0) is (number > 0)
        trained = {at: rows for at, rows in trained.items() if at < first}
        trained |= {row["iteration"]: rows for rows in job.iterations() for row in rows.values()}
    assert list(trained) == list(range(len(trained)))
    assert Alone("adamw").train(trained.values()) >= 48


@pytest.mark.parametrize(
    ("layout", "position"),
    [
        pytest.param(*each, marks=() if each == ("P=2 T=1 M=2", 1) else pytest.mark.slow)
        for each in POSITIONS
    ],
)
def test_a_gradient_that_overflows_in_one_process_lets_all_of_them_skip_the_step(
    tmp_path: Path, layout: str, position: int
) -> None:
    """A scaler looks at its own process's gradients; the others' must skip, too."""
    conductor = Conductor(
        tmp_path,
        ["-c", SCALED, str(position)],
        dataset_size=SAMPLES,
        purpose="probe",
        launch=start_with(Layout.parse(layout), fork),
    )
    with conductor:
        conductor.start("w0")
        conductor.wait_applied(conductor.order(["w0"], BATCH, report_after=6), 6)
    for place in range(Layout.parse(layout).processes):
        rows = {row["iteration"]: row for row in conductor.rows(str(place))}
        assert [rows[at]["moved"] > 0 for at in range(6)] == [True, True, True, False, True, True]
        assert [rows[at]["scale"] for at in range(6)] == [64, 64, 64, 32, 32, 32]
