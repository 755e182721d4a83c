"""Scripts of ParameterServerStrategy in a job: rows, and workers that are lost and come back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from scavenger.protocol import Member
from scavenger.schemas.jobs import JobPhase
from tests.conductor import Conductor
from tests.controller import Controller
from tests.integration.test_run import conduct, rows_of
from tests.tensorflow.test_instrumentation import SCRIPTS
from tests.tensorflow.test_servers import columns

BATCH = 16


@contextmanager
def asynchronous(directory: Path, *flags: str, **environment: str) -> Iterator[Conductor]:
    """Conduct a job with one server and two workers, which have said hello."""
    script = [sys.executable, str(SCRIPTS / "asynchronous.py"), "keras", "0", *flags]
    with conduct(directory, *script, **environment) as conductor:
        start(conductor, "server", "s0")
        for worker in ("w0", "w1"):
            start(conductor, "worker", worker)
        conductor.wait(lambda: "s0" in conductor.hellos)
        yield conductor


def start(conductor: Conductor, role: str, name: str) -> None:
    conductor.environment = {**conductor.environment, "SCAVENGER_ROLE": role}
    conductor.start(name)


def order(conductor: Conductor, workers: list[str], **changes: Any) -> int:
    """Publish a Directive with the server that there is."""
    servers = (Member("s0", conductor.hellos["s0"].address),)
    return conductor.order(workers, BATCH, servers=servers, strategy="downpour", **changes)


def shards(conductor: Conductor, generation: int) -> list[int]:
    """Return over how many workers the norms of each row of a generation were taken."""
    reports = [each for each in conductor.reports if each.progress.generation == generation]
    return [row["shards"] for report in reports for row in columns(report.steps)]


def processes_of(conductor: Conductor, name: str) -> list[psutil.Process]:
    """Return the script's processes on a machine, the oldest first."""
    children = psutil.Process(conductor.processes[name].pid).children(recursive=True)
    found = [each for each in children if any("asynchronous.py" in a for a in each.cmdline())]
    return sorted(found, key=lambda process: process.create_time())


@pytest.mark.slow
def test_a_worker_that_is_killed_comes_back_while_the_other_trains(tmp_path: Path) -> None:
    with asynchronous(tmp_path) as conductor:
        generation = order(conductor, ["w0", "w1"])
        conductor.wait(lambda: shards(conductor, generation)[20:].count(2) > 5)
        (before,) = processes_of(conductor, "w1")
        before.kill()
        told = len(shards(conductor, generation))
        conductor.wait(lambda: shards(conductor, generation)[told:].count(1) > 20)
        told = len(shards(conductor, generation))
        conductor.wait(lambda: shards(conductor, generation)[told:].count(2) > 5)
        (after,) = processes_of(conductor, "w1")
        iterations = [i for report in conductor.reports for i in report.steps.iteration]
        told_by_first = [report for report in conductor.reports if report.worker == "w0"]
        progress = told_by_first[-1].progress
        said = conductor.logs()
    assert after.pid != before.pid
    assert iterations == list(range(1, len(iterations) + 1)), said
    assert progress.samples == BATCH * progress.iteration
    assert 0 <= progress.metrics["staleness"] < 50


@pytest.mark.slow
def test_another_machine_takes_the_place_of_one_that_is_lost(tmp_path: Path) -> None:
    with asynchronous(tmp_path) as conductor:
        generation = order(conductor, ["w0", "w1"])
        conductor.wait(lambda: shards(conductor, generation)[20:].count(2) > 5)
        coordinator = processes_of(conductor, "w0")[-1]
        lost = processes_of(conductor, "w1")
        conductor.processes["w1"].kill()
        for process in lost:
            process.kill()
        alone = order(conductor, ["w0"], repairs=True)
        conductor.wait(lambda: rows_of(conductor.reports, alone) > 20)
        start(conductor, "worker", "w2")
        again = order(conductor, ["w0", "w2"])
        conductor.wait(lambda: shards(conductor, again).count(2) > 5)
        assert processes_of(conductor, "w0")[-1] == coordinator, "it has not started anew"
        iterations = [i for report in conductor.reports for i in report.steps.iteration]
        said = conductor.logs()
    assert iterations == list(range(1, len(iterations) + 1)), said


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["coordinator", "server"])
def test_all_start_again_from_the_scripts_own_checkpoint(tmp_path: Path, victim: str) -> None:
    with asynchronous(tmp_path, "own") as conductor:
        generation = order(conductor, ["w0", "w1"])
        conductor.wait(lambda: (tmp_path / "own" / "checkpoint").exists())
        conductor.wait(lambda: rows_of(conductor.reports, generation) > 20)
        name = "w0" if victim == "coordinator" else "s0"
        processes_of(conductor, name)[-1].kill()
        conductor.wait(lambda: conductor.processes[name].poll() is not None)
        assert conductor.processes[name].returncode == -9
        hello = conductor.hellos.pop(name)
        (tmp_path / f"{name}.log").rename(tmp_path / f"{name}-before.log")
        start(conductor, "worker" if name == "w0" else "server", name)  # as the supervisor does
        conductor.wait(lambda: conductor.hellos.get(name, hello).address != hello.address)
        again = order(conductor, ["w0", "w1"], repairs=True)
        conductor.wait(lambda: shards(conductor, again).count(2) > 5)
        said = conductor.logs()
    assert "restored" in said


@pytest.mark.slow
def test_a_plan_with_other_workers_is_refused_with_what_to_write(tmp_path: Path) -> None:
    with asynchronous(tmp_path) as conductor:
        generation = order(conductor, ["w0", "w1"])
        conductor.wait(lambda: rows_of(conductor.reports, generation) > 5)
        order(conductor, ["w0"])
        assert conductor.processes["w0"].wait() == 2
        said = conductor.logs()
    assert "stopped: a script with ParameterServerStrategy keeps its workers" in said
    assert "write strategy: {downpour: {servers: 1}}" in said


@pytest.mark.slow
def test_a_job_is_not_searched_and_comes_to_its_end(controller: Controller) -> None:
    command = [sys.executable, "-m", "worker_agent", "run", "--", sys.executable]
    document = {
        "model": {"key": "tests/asynchronous", "dataset_size": 4096},
        "target": {"epochs": 30, "at_batch": BATCH},
        "strategy": {"downpour": {"servers": 1}},
        "limits": {"workers": 2, "batch": BATCH, "max_time": "15m"},
        "framework": "tensorflow",
        "price": "0.13402 USD/h",
        "run": {"command": [*command, str(SCRIPTS / "asynchronous.py"), "keras", "400"]},
    }
    view = controller.finished(controller.submit(document))
    told = [(event.kind, event.message) for event in controller.events(view.id)]
    print("\n".join(map(str, told)))
    assert view.phase is JobPhase.SUCCEEDED, (view.reason, controller.log())
    assert any("downpour is not searched: training on K=2 B=16" in said for _, said in told)
    assert view.progress.iteration == 200
