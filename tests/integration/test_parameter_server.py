"""Real workers and real servers: what the servers do must be what one process would have done."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scavenger.protocol import Member
from tests.conductor import Conductor
from tests.integration import trainee
from tests.integration.forked import fork
from tests.integration.test_elastic import (
    applied,
    assert_each_epoch_holds_every_sample_once,
    replay,
    trajectory,
)

SERVER = ["-m", "worker_agent.parameter_server"]


@contextmanager
def conduct(directory: Path, **environment: str) -> Iterator[Conductor]:
    conductor = Conductor(
        directory,
        [str(Path(trainee.__file__))],
        dataset_size=trainee.SAMPLES,
        purpose="probe",
        environment={
            "PACE": "0.002",
            "SCAVENGER_JOB_SECRET": "ours",
            "SCAVENGER_STRATEGY": "parameter_server",
            **environment,
        },
        launch=fork,
    )
    with conductor:
        yield conductor


def start_servers(conductor: Conductor, *names: str) -> None:
    worker, conductor.command = conductor.command, SERVER
    for name in names:
        conductor.start(name)
    conductor.command = worker


def order(
    conductor: Conductor,
    workers: Sequence[str],
    servers: Sequence[str],
    batch: int = 24,
    **changes: Any,
) -> int:
    conductor.wait(lambda: all(name in conductor.hellos for name in servers))
    members = tuple(Member(name, conductor.hellos[name].address) for name in servers)
    return conductor.order(
        list(workers), batch, strategy="parameter_server", servers=members, **changes
    )


def test_the_trajectory_with_servers_over_resizes_is_that_of_one_process(tmp_path: Path) -> None:
    names = ["w0", "w1", "w2", "w3"]
    with conduct(tmp_path) as conductor:
        start_servers(conductor, "s0", "s1")
        for name in names:
            conductor.start(name)
        for workers, batch in ((1, 24), (2, 24), (4, 36), (3, 24), (1, 24)):
            generation = order(conductor, names[:workers], ["s0", "s1"], batch)
            conductor.wait_applied(generation, iterations=10)
    sequence, losses = trajectory(conductor)
    assert len(losses) > 40
    assert np.allclose(losses, replay(sequence), rtol=0, atol=1e-10)
    assert_each_epoch_holds_every_sample_once(sequence)


@pytest.mark.parametrize("victim", ["w2", "w0"], ids=["follower", "leader"])
def test_survivors_redo_the_iteration_at_the_servers(tmp_path: Path, victim: str) -> None:
    names = ["w0", "w1", "w2"]
    with conduct(tmp_path) as conductor:
        start_servers(conductor, "s0", "s1")
        for name in names:
            conductor.start(name)
        conductor.wait_applied(order(conductor, names, ["s0", "s1"]), iterations=10)
        conductor.processes[victim].send_signal(signal.SIGKILL)
        conductor.processes[victim].wait()
        survivors = [name for name in names if name != victim]
        before = {name: len(applied(conductor.rows(name))) for name in survivors}
        conductor.wait(
            lambda: all(len(applied(conductor.rows(n))) > before[n] + 15 for n in survivors)
        )
    sequence, losses = trajectory(conductor)
    assert np.allclose(losses, replay(sequence), rtol=0, atol=1e-10)
    assert_each_epoch_holds_every_sample_once(sequence)


@pytest.mark.parametrize("micro_batches", [1, 2], ids=["plain", "accumulated"])
def test_the_servers_measure_noise_as_it_is(tmp_path: Path, micro_batches: int) -> None:
    workers = ["w0", "w1", "w2"]
    with conduct(tmp_path, GRADIENTS="1", MICRO_BATCHES=str(micro_batches)) as conductor:
        start_servers(conductor, "s0", "s1")
        for name in workers:
            conductor.start(name)
        conductor.wait_applied(order(conductor, workers, ["s0", "s1"], 36), iterations=15)
    written = [applied(conductor.rows(name)) for name in workers]
    measured = measurements(conductor)
    assert len(measured) >= 15
    for iteration, (local, mean) in measured.items():
        shards = np.array([g for rows in written for g in rows[iteration]["gradients"]])
        assert local == pytest.approx((shards**2).sum(axis=1).mean(), rel=1e-5)
        assert mean == pytest.approx((shards.mean(axis=0) ** 2).sum(), rel=1e-5)


def measurements(conductor: Conductor) -> dict[int, tuple[float | None, float | None]]:
    return {
        iteration: (local, mean)
        for report in conductor.reports
        for iteration, local, mean in zip(
            report.steps.iteration,
            report.steps.local_norm_sq,
            report.steps.mean_norm_sq,
            strict=True,
        )
    }


def test_one_worker_measures_noise_on_halves_with_servers_too(tmp_path: Path) -> None:
    with conduct(tmp_path, GRADIENTS="1") as conductor:
        conductor.split_every = 3
        start_servers(conductor, "s0", "s1")
        conductor.start("w0")
        conductor.wait_applied(order(conductor, ["w0"], ["s0", "s1"], 25), iterations=20)
    halves: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in conductor.rows("w0"):
        halves[row["iteration"]].append(row)
    split = {i: norms for i, norms in measurements(conductor).items() if norms[0] is not None}
    assert len(split) >= 5
    for iteration, (local, mean) in split.items():
        shares = np.array([len(row["indices"]) / 25 for row in halves[iteration]])
        gradients = np.array([row["gradients"][0] for row in halves[iteration]])
        assert len(shares) == 2
        assert local == pytest.approx(shares @ (gradients**2).sum(axis=1), rel=1e-5)
        assert mean == pytest.approx(((shares @ gradients) ** 2).sum(), rel=1e-5)


def test_a_lost_server_is_replaced_and_training_goes_on_from_the_leader(tmp_path: Path) -> None:
    with conduct(tmp_path) as conductor:
        start_servers(conductor, "s0", "s1", "s2")
        for name in ("w0", "w1"):
            conductor.start(name)
        conductor.wait_applied(order(conductor, ["w0", "w1"], ["s0", "s1"]), iterations=10)
        conductor.processes["s1"].kill()
        conductor.wait(lambda: any(report.broken == 1 for report in conductor.reports))
        servers = tuple(Member(name, conductor.hellos[name].address) for name in ("s0", "s2"))
        generation = conductor.order(
            ["w0", "w1"], 24, strategy="parameter_server", servers=servers, repairs=True
        )
        conductor.wait_applied(generation, iterations=10)
    sequence, _ = trajectory(conductor)
    assert_each_epoch_holds_every_sample_once(sequence)


def test_when_all_workers_and_servers_die_training_goes_on_from_the_checkpoint(
    tmp_path: Path,
) -> None:
    saved = tmp_path / "checkpoints"
    settings = {"SCAVENGER_CHECKPOINTS": str(saved), "SCAVENGER_CHECKPOINT_EVERY": "0.05"}
    with conduct(tmp_path, **settings) as conductor:
        start_servers(conductor, "s0", "s1")
        for name in ("w0", "w1"):
            conductor.start(name)
        conductor.wait_applied(order(conductor, ["w0", "w1"], ["s0", "s1"]), iterations=10)
        conductor.wait(lambda: saved.exists() and any(saved.glob("*/state.json")))
        for name in ("s0", "s1", "w0", "w1"):
            conductor.processes[name].kill()
            conductor.processes[name].wait()
        start_servers(conductor, "s2", "s3")
        for name in ("w2", "w3"):
            conductor.start(name)
        generation = order(conductor, ["w2", "w3"], ["s2", "s3"], handover=None)
        conductor.wait_applied(generation, iterations=10)
        first = min(row["iteration"] for row in conductor.rows("w2"))
    sequence, losses = trajectory(conductor)
    assert first > 1
    assert np.allclose(losses, replay(sequence), rtol=0, atol=1e-10)
