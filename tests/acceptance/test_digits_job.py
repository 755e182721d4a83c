"""The main job, as its users see it: over HTTP, with real processes, gradients and data."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from scavenger.schemas.jobs import JobPhase
from tests.controller import Controller

HELD = Path(__file__).with_name("held.py")
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "digits"


def digits(**changes: Any) -> dict[str, Any]:
    """The example's job, run by this Python in the example's directory."""
    document: dict[str, Any] = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    document["run"] = {"command": [sys.executable, "train.py"], "directory": str(EXAMPLE)}
    return {**document, **changes}


def held(path: Path) -> dict[str, Any]:
    """The same job, which does not reach its target before the file at a path is gone."""
    path.touch()
    document = digits()
    document["run"] |= {"command": [sys.executable, str(HELD)], "env": {"HELD": str(path)}}
    document["target"] |= {"goal": 0.9, "max_epochs": 100_000}  # short, once the search is over
    document["limits"]["max_time"] = "10h"
    return document


@pytest.mark.slow
def test_the_digits_job_is_searched_resized_and_reaches_its_target(controller: Controller) -> None:
    path = controller.home.parent / "held"
    job = controller.submit(held(path))
    controller.wait(lambda: controller.curve(job).chosen is not None)
    path.unlink()
    first = controller.finished(job)
    assert first.phase is JobPhase.SUCCEEDED, first.reason
    assert first.progress.metrics["accuracy"] >= 0.9
    curve = controller.curve(first.id)
    probed = [(probe.workers, probe.global_batch) for probe in curve.probes]
    assert probed[:3] == [(1, 8), (1, 128), (2, 128)]
    assert all(p.noise and p.compute_time > 0 for p in curve.probes)
    sync = {(p.workers, p.global_batch): p.sync_time for p in curve.probes}
    assert sync[1, 128] < sync[2, 128] / 2
    assert curve.decision == 1
    assert curve.chosen in curve.front
    assert curve.chosen == curve.knee
    assert len(curve.points) == 10
    measured = [resize for resize in curve.resizes if resize.pause is not None]
    assert len(measured) >= 4
    assert all(resize.iterations_lost == 0 for resize in measured)
    assert first.cost.cap is not None
    assert 0 < first.cost.search.amount < first.cost.accrued.amount <= first.cost.cap.amount
    launches = [event for event in controller.events(first.id) if event.kind == "vm_launched"]
    assert len(launches) <= 3, "a machine that a later probe may want again stands by"


def submit_with_code(controller: Controller, document: dict[str, Any], directory: Path) -> str:
    """Submit the job with a copy of the example's code, which is gone before a machine starts."""
    source, file = directory / "source", directory / "job.yaml"
    shutil.copytree(EXAMPLE, source)
    document["run"] = {
        "command": [sys.executable, "train.py"],
        "setup": [sys.executable, "-c", "open('train.py'); open('set-up', 'x')"],
    }
    file.write_text(yaml.safe_dump(document))
    connection = controller.connection
    command = [sys.executable, "-c", "from scavenger.cli import main; main()", "submit", str(file)]
    told = {"SCAVENGER_URL": connection["url"], "SCAVENGER_TOKEN": connection["token"]}
    sent = subprocess.run(
        [*command, "--code", str(source)], env={**os.environ, **told}, stdout=subprocess.PIPE
    )
    assert sent.returncode == 0
    shutil.rmtree(source)
    return sent.stdout.decode().strip()


def kill_process(victim: psutil.Process) -> None:
    victim.kill()


def kill_machine(victim: psutil.Process) -> None:
    os.killpg(os.getpgid(victim.pid), signal.SIGKILL)


@pytest.mark.parametrize(
    ("kill", "kind", "words", "goes_on"),
    [
        pytest.param(
            *(kill_process, "restart", "killed by SIGKILL", "started again: going on with K=1"),
            marks=pytest.mark.slow,
        ),
        (kill_machine, "vm_gone", "is gone", "the survivors go on with K=1"),
    ],
)
def test_survivors_of_a_killed_worker_finish_the_job(
    controller: Controller,
    kill: Callable[[psutil.Process], None],
    kind: str,
    words: str,
    goes_on: str,
    tmp_path: Path,
) -> None:
    """Its directory is none that the machines could reach: they have their own copies of it."""
    document = digits(
        model={"key": "examples/digits-killed", "dataset_size": 1437},
        target={"metric": "accuracy", "goal": 0.8, "max_epochs": 120, "at_batch": 8},
        limits={"workers": 2, "batch": [64], "max_cost": "0.50 USD"},
    )
    job = submit_with_code(controller, document, tmp_path)
    controller.wait(lambda: controller.job(job).progress.iteration > 20)
    kill(controller.trainers()[0])
    view = controller.finished(job)
    assert view.phase is JobPhase.SUCCEEDED, view.reason
    events = [(event.kind, event.message) for event in controller.events(job)]
    assert any(event == kind and words in text for event, text in events)
    assert any(event == "resize" and goes_on in text for event, text in events)
    curve = controller.curve(job)
    assert [r.after.workers for r in curve.resizes][:3] == [2, 1, 2]
    assert all(resize.iterations_lost in (0, None) for resize in curve.resizes)


def test_a_script_that_fails_fails_the_job_with_its_own_words(controller: Controller) -> None:
    command = [sys.executable, "-c", "raise SystemExit('the data is missing')"]
    view = controller.finished(controller.submit(digits(run={"command": command})))
    assert (view.phase, view.worker_exit_code) == (JobPhase.FAILED, 1)
    assert "the data is missing" in view.reason


def test_a_cancelled_job_leaves_no_machine(controller: Controller) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    limits = {"workers": 1, "batch": 64, "max_cost": "0.50 USD"}
    job = controller.submit(digits(run={"command": command}, limits=limits))
    controller.wait(lambda: controller.job(job).workers_alive == 1)
    controller.ask("POST", f"/v1/jobs/{job}/actions/cancel")
    view = controller.finished(job)
    assert view.phase is JobPhase.CANCELLED
    controller.wait(lambda: not controller.trainers())


@pytest.mark.slow  # a minute of processor time for another model
def test_the_gpt_example_trains_on_two_workers_for_some_iterations(controller: Controller) -> None:
    directory = EXAMPLE.parent / "gpt"
    document: dict[str, Any] = yaml.safe_load((directory / "job.yaml").read_text())
    document |= {
        "target": {"epochs": 0.02, "at_batch": 32},
        "limits": {"workers": 2, "batch": 32, "max_cost": "0.10 USD"},
        "run": {"command": [sys.executable, "train.py"], "directory": str(directory)},
    }
    view = controller.finished(controller.submit(document))
    assert view.phase is JobPhase.SUCCEEDED, view.reason
    assert view.progress.epochs >= 0.02
