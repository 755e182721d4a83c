"""Real processes change their number while they train; the trajectory must not notice."""

from __future__ import annotations

import math
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from scavenger.protocol import NotFinite
from tests.conductor import Conductor
from tests.integration import trainee
from tests.integration.forked import fork

TRAINEE = str(Path(trainee.__file__))


def conduct(directory: Path, **environment: str) -> Conductor:
    return Conductor(
        directory,
        [TRAINEE],
        dataset_size=trainee.SAMPLES,
        purpose="probe",
        environment={"PACE": "0.002", **environment},
        launch=fork,
    )


def applied(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Keep the last attempt at each iteration: an earlier one was undone."""
    return {row["iteration"]: row for row in rows}


def replay(order: list[list[int]]) -> list[float]:
    """Train one process on the same samples in the same order; returns mean losses."""
    inputs, labels = trainee.problem()
    model = trainee.network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for indices in order:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[indices]), labels[indices])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trajectory(conductor: Conductor) -> tuple[list[list[int]], list[float]]:
    """Join what all workers wrote: sample order and mean loss by iteration."""
    parts: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(conductor.directory.glob("*.jsonl")):
        for iteration, row in applied(conductor.rows(path.stem)).items():
            parts[iteration].append(row)
    order, losses = [], []
    for iteration in sorted(parts):
        newest = max(row["attempt"] for row in parts[iteration])
        rows = [row for row in parts[iteration] if row["attempt"] == newest]
        order.append([i for row in rows for i in row["indices"]])
        losses.append(math.fsum(row["loss"] for row in rows) / len(order[-1]))
    return order, losses


def test_the_trajectory_over_resizes_is_that_of_one_process(tmp_path: Path) -> None:
    plan = [(1, 24), (2, 24), (4, 24), (3, 36), (1, 24)]
    with conduct(tmp_path) as conductor:
        for number in range(4):
            conductor.start(f"w{number}")
        for workers, batch in plan:
            generation = conductor.order([f"w{n}" for n in range(workers)], batch)
            conductor.wait_applied(generation, iterations=12)
        regrouped = {r.regrouped.generation: r.regrouped for r in conductor.reports if r.regrouped}
    order, losses = trajectory(conductor)
    assert np.allclose(losses, replay(order), rtol=0, atol=1e-10)
    assert len(losses) > 60
    assert all(change.iterations_lost == 0 for change in regrouped.values())
    assert set(regrouped) == {1, 2, 3, 4, 5}
    assert_each_epoch_holds_every_sample_once(order)


def test_a_worker_that_stood_by_comes_back_as_a_newcomer(tmp_path: Path) -> None:
    """Left out twice, the second time as leader; no process is started again, no iteration lost."""
    with conduct(tmp_path) as conductor:
        for name in ("w0", "w1"):
            conductor.start(name)
        conductor.wait_applied(conductor.order(["w0", "w1"], 24), iterations=10)
        for stays, waits in (("w0", "w1"), ("w1", "w0")):
            before = conductor.hellos[waits].address
            alone = conductor.order([stays], 24, standby=(waits,))
            conductor.wait_applied(alone, iterations=10)
            conductor.wait(lambda who=waits, at=before: conductor.hellos[who].address != at)
            conductor.wait_applied(conductor.order([stays, waits], 24), iterations=10)
        regrouped = [report.regrouped for report in conductor.reports if report.regrouped]
        running = [process.poll() for process in conductor.processes.values()]
    order, losses = trajectory(conductor)
    assert np.allclose(losses, replay(order), rtol=0, atol=1e-10)
    assert_each_epoch_holds_every_sample_once(order)
    assert all(change.iterations_lost == 0 for change in regrouped)
    assert running == [None, None]


@pytest.mark.parametrize("waits", ["w1", "w0"], ids=["follower", "leader"])
def test_a_worker_that_stands_by_ends_in_order_when_it_is_told_to(
    tmp_path: Path, waits: str
) -> None:
    """Also when a checkpoint is due, which is not for it to write."""
    kept = {"SCAVENGER_CHECKPOINTS": str(tmp_path / "kept"), "SCAVENGER_CHECKPOINT_EVERY": "0"}
    stays = "w0" if waits == "w1" else "w1"
    with conduct(tmp_path, **kept) as conductor:
        for name in ("w0", "w1"):
            conductor.start(name)
        conductor.wait_applied(conductor.order(["w0", "w1"], 24), iterations=10)
        before = conductor.hellos[waits].address
        conductor.order([stays], 24, standby=(waits,))
        conductor.wait(lambda: conductor.hellos[waits].address != before)
        conductor.processes[waits].send_signal(signal.SIGTERM)
        conductor.wait(lambda: conductor.processes[waits].poll() is not None)
        assert conductor.processes[waits].poll() == 0, conductor.logs()
        endings = {r.worker: r.finished for r in conductor.reports if r.finished}
    assert endings == {waits: "released"}


def test_progress_by_noise_that_had_not_settled_is_corrected_once(tmp_path: Path) -> None:
    with conduct(tmp_path) as conductor:
        for name in ("w0", "w1"):
            conductor.start(name)
        worth = {"progress_per_iteration": 1.0}
        early = conductor.order(["w0"], 24, is_provisional=True, **worth)
        conductor.wait_applied(early, iterations=5)
        for names in (["w0", "w1"], ["w1"]):
            settled = conductor.order(names, 24, correction=0.5, **worth)
            conductor.wait_applied(settled, iterations=5)
        reports = conductor.reports
    provisional = max(r.progress.iteration for r in reports if r.progress.generation == early)
    last = max((r.progress for r in reports), key=lambda progress: progress.iteration)
    assert last.generation == settled
    # Iterations may have been made between the last report of a generation and its end.
    halved = 2 * (last.iteration - last.epochs)
    assert halved == pytest.approx(round(halved))
    assert provisional <= halved < last.iteration - 5


def assert_each_epoch_holds_every_sample_once(order: list[list[int]]) -> None:
    stream = [index for indices in order for index in indices]
    for start in range(0, len(stream) - trainee.SAMPLES, trainee.SAMPLES):
        epoch = stream[start : start + trainee.SAMPLES]
        assert sorted(epoch) == list(range(trainee.SAMPLES))


@pytest.mark.parametrize("victim", ["w2", "w0"], ids=["follower", "leader"])
def test_survivors_of_a_killed_worker_redo_the_iteration_and_go_on(
    tmp_path: Path, victim: str
) -> None:
    names = ["w0", "w1", "w2"]
    with conduct(tmp_path) as conductor:
        for name in names:
            conductor.start(name)
        conductor.wait_applied(conductor.order(names, 24), iterations=10)
        conductor.processes[victim].send_signal(signal.SIGKILL)
        survivors = [name for name in names if name != victim]
        conductor.wait(
            lambda: {r.worker for r in conductor.reports if r.broken == 1} >= set(survivors)
        )
        conductor.wait_applied(conductor.order(survivors, 24, repairs=True), iterations=20)
    order, losses = trajectory(conductor)
    assert np.allclose(losses, replay(order), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_a_leader_that_naps_in_the_middle_of_a_change_does_no_harm(tmp_path: Path) -> None:
    with conduct(tmp_path) as conductor:
        for name in ("w0", "w1", "w2"):
            conductor.start(name)
        conductor.wait_applied(conductor.order(["w0", "w1"], 24), iterations=10)
        generation = conductor.order(["w0", "w1", "w2"], 24)
        conductor.processes["w0"].send_signal(signal.SIGSTOP)
        conductor.wait(lambda: conductor.has_been_silent("w0", seconds=3))
        conductor.processes["w0"].send_signal(signal.SIGCONT)
        conductor.wait_applied(generation, iterations=10)
    order, losses = trajectory(conductor)
    assert np.allclose(losses, replay(order), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_a_newcomer_that_dies_leaves_the_others_training(tmp_path: Path) -> None:
    with conduct(tmp_path) as conductor:
        for name in ("w0", "w1", "w2"):
            conductor.start(name)
        conductor.wait_applied(conductor.order(["w0"], 24), iterations=10)
        conductor.wait(lambda: {"w1", "w2"} <= set(conductor.hellos))
        conductor.processes["w1"].kill()
        conductor.processes["w1"].wait()
        refused = conductor.order(["w0", "w1", "w2"], 24)
        conductor.wait(lambda: any(r.refused == refused for r in conductor.reports))
        generation = conductor.order(["w0", "w2"], 24)
        conductor.wait_applied(generation, iterations=20)
    order, losses = trajectory(conductor)
    assert np.allclose(losses, replay(order), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_survivors_of_a_hung_worker_go_on_once_they_are_told(tmp_path: Path) -> None:
    names = ["w0", "w1", "w2"]
    with conduct(tmp_path) as conductor:
        for name in names:
            conductor.start(name)
        conductor.wait_applied(conductor.order(names, 24), iterations=10)
        conductor.processes["w2"].send_signal(signal.SIGSTOP)
        conductor.wait(lambda: conductor.has_been_silent("w2", seconds=2))
        generation = conductor.order(["w0", "w1"], 24, repairs=True)
        conductor.wait_applied(generation, iterations=20)
    order, losses = trajectory(conductor)
    assert np.allclose(losses, replay(order), rtol=0, atol=1e-10)


@pytest.mark.parametrize("micro_batches", [1, 3], ids=["plain", "accumulated"])
def test_measured_noise_equals_the_direct_computation(tmp_path: Path, micro_batches: int) -> None:
    workers = ["w0", "w1", "w2"]
    with conduct(tmp_path, GRADIENTS="1", MICRO_BATCHES=str(micro_batches)) as conductor:
        for name in workers:
            conductor.start(name)
        conductor.wait_applied(conductor.order(workers, 36), iterations=15)
    measured = {
        iteration: (local, mean)
        for report in conductor.reports
        for iteration, local, mean in zip(
            report.steps.iteration,
            report.steps.local_norm_sq,
            report.steps.mean_norm_sq,
            strict=True,
        )
    }
    written = [applied(conductor.rows(name)) for name in workers]
    assert len(measured) >= 15
    for iteration, (local, mean) in measured.items():
        shards = np.array([g for rows in written for g in rows[iteration]["gradients"]])
        direct_local = float((shards**2).sum(axis=1).mean())
        direct_mean = float((shards.mean(axis=0) ** 2).sum())
        assert local == pytest.approx(direct_local, rel=1e-5)
        assert mean == pytest.approx(direct_mean, rel=1e-5)
        assert local / mean == pytest.approx(direct_local / direct_mean, rel=1e-5)


def test_one_worker_measures_noise_on_the_halves_of_its_batch(tmp_path: Path) -> None:
    with conduct(tmp_path, GRADIENTS="1") as conductor:
        conductor.split_every = 3
        conductor.start("w0")
        conductor.wait_applied(conductor.order(["w0"], 25), iterations=30)
    halves: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in conductor.rows("w0"):
        halves[row["iteration"]].append(row)
    steps = [report.steps for report in conductor.reports]
    shards = {i: s for step in steps for i, s in zip(step.iteration, step.shards, strict=True)}
    assert set(shards.values()) == {1, 2}
    for step in steps:
        for i, count, local, mean in zip(
            step.iteration, step.shards, step.local_norm_sq, step.mean_norm_sq, strict=True
        ):
            if count == 1:
                assert local is None
                continue
            shares = np.array([len(row["indices"]) / 25 for row in halves[i]])
            grads = np.array([row["gradients"][0] for row in halves[i]])
            assert local == pytest.approx(shares @ (grads**2).sum(axis=1), rel=1e-5)
            assert mean == pytest.approx(((shares @ grads) ** 2).sum(), rel=1e-5)
    order = [[i for row in rows for i in row["indices"]] for rows in halves.values()]
    assert_each_epoch_holds_every_sample_once(order)


def latest(conductor: Conductor, worker: str) -> int:
    return max((r.progress.iteration for r in conductor.reports if r.worker == worker), default=0)


@pytest.mark.parametrize("victim", ["w2", "w0"], ids=["follower", "leader"])
def test_survivors_go_on_by_themselves_when_the_others_are_proven_dead(
    tmp_path: Path, victim: str
) -> None:
    names = ["w0", "w1", "w2"]
    with conduct(tmp_path) as conductor:
        for name in names:
            conductor.start(name)
        conductor.wait_applied(conductor.order(names, 24), iterations=10)
        reached = max(latest(conductor, name) for name in names)
        conductor.processes[victim].send_signal(signal.SIGKILL)
        first = next(name for name in names if name != victim)
        conductor.wait(lambda: latest(conductor, first) > reached + 60)
        rows = [i for report in conductor.reports for i in report.steps.iteration]
    assert max(rows) < reached + 40  # no directive asked for that configuration
    order, losses = trajectory(conductor)
    assert np.allclose(losses, replay(order), rtol=0, atol=1e-10)
    assert_each_epoch_holds_every_sample_once(order)


def test_all_machines_are_replaced_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    with conduct(tmp_path) as conductor:
        for name in ("w0", "w1", "w2", "w3"):
            conductor.start(name)
        conductor.wait_applied(conductor.order(["w0", "w1"], 24), iterations=10)
        conductor.wait_applied(conductor.order(["w2", "w3"], 24), iterations=10)
        conductor.wait_applied(conductor.order(["w3"], 24), iterations=10)
        endings = {r.worker: r.finished for r in conductor.reports if r.finished}
        lost = [r.regrouped.iterations_lost for r in conductor.reports if r.regrouped]
    order, losses = trajectory(conductor)
    assert np.allclose(losses, replay(order), rtol=0, atol=1e-10)
    assert_each_epoch_holds_every_sample_once(order)
    assert endings == {"w0": "released", "w1": "released", "w2": "released"}
    assert set(lost) == {0}


@pytest.mark.parametrize("leaver", ["w1", "w0"], ids=["follower", "leader"])
def test_a_worker_that_is_asked_to_end_leaves_at_a_boundary(tmp_path: Path, leaver: str) -> None:
    with conduct(tmp_path) as conductor:
        for name in ("w0", "w1", "w2"):
            conductor.start(name)
        conductor.wait_applied(conductor.order(["w0", "w1", "w2"], 24), iterations=10)
        conductor.processes[leaver].send_signal(signal.SIGTERM)
        conductor.wait(lambda: conductor.processes[leaver].poll() is not None)
        assert conductor.processes[leaver].poll() == 0
        stayer = "w0" if leaver == "w1" else "w1"  # the leader afterwards
        left_at = latest(conductor, stayer)
        conductor.wait(lambda: latest(conductor, stayer) > left_at + 20)
        assert not any(report.broken for report in conductor.reports)
        endings = {r.worker: r.finished for r in conductor.reports if r.finished}
    order, losses = trajectory(conductor)
    assert np.allclose(losses, replay(order), rtol=0, atol=1e-10)
    assert endings == {leaver: "released"}


def test_the_worker_whose_loss_was_nan_says_so_and_that_it_has_recovered(tmp_path: Path) -> None:
    with conduct(tmp_path, NAN_AT="w1 9") as conductor:
        for number in range(2):
            conductor.start(f"w{number}")
        generation = conductor.order(["w0", "w1"], 24)
        conductor.wait_applied(generation, iterations=30)
        told = {"loss": NotFinite("NaN", 9, None)}
        conductor.wait(lambda: any(r.progress.not_finite == told for r in conductor.reports))
        odd = [report for report in conductor.reports if report.progress.not_finite]
    assert {report.worker for report in odd} == {"w1"}
    assert all(math.isfinite(report.progress.metrics["loss"]) for report in odd)
