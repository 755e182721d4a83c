"""Real workers and real servers: what the servers do must be what one process would have done."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from scavenger.protocol import Member
from tests.conductor import Conductor
from tests.integration import served, trainee
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
        [str(Path(served.__file__))],
        dataset_size=trainee.SAMPLES,
        purpose="probe",
        environment={"PACE": "0.002", "SCAVENGER_JOB_SECRET": "ours", **environment},
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
    conductor: Conductor, workers: Sequence[str], servers: Sequence[str], batch: int = 24
) -> int:
    conductor.wait(lambda: all(name in conductor.hellos for name in servers))
    members = tuple(Member(name, conductor.hellos[name].address) for name in servers)
    return conductor.order(
        list(workers), batch, strategy="parameter_server", servers=members, repairs=False
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
