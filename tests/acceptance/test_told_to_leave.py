"""Machines that are told to end: training goes on without them, and then with others."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from scavenger.schemas.jobs import JobPhase
from tests.controller import Controller

SCRIPT = Path(__file__).parents[1] / "integration" / "trainee.py"


def training(work: Path, workers: int) -> dict[str, Any]:
    """A job of so many workers that never ends by itself."""
    work.mkdir(parents=True)
    run = {
        "command": [sys.executable, str(SCRIPT)],
        "directory": str(work),
        "env": {"PACE": "0.01"},
        "checkpoints": {"every": "1s"},
    }
    return {
        "model": {"key": "tests/leaving", "dataset_size": 240},
        "target": {"epochs": 100_000, "at_batch": 24},
        "limits": {"workers": workers, "batch": 24, "max_cost": "1 USD"},
        "level": "observe",
        "price": "0.36 USD/h",
        "run": run,
    }


def told(controller: Controller, job: str, words: str) -> bool:
    return any(words in event.message for event in controller.events(job))


def cancel(controller: Controller, job: str) -> None:
    controller.ask("POST", f"/v1/jobs/{job}/actions/cancel")
    assert controller.finished(job).phase is JobPhase.CANCELLED


@pytest.mark.slow
def test_the_leader_leaves_and_is_replaced(controller: Controller, open_directory: Path) -> None:
    job = controller.submit(training(open_directory / "leaving" / "two", workers=2))
    controller.wait(lambda: controller.job(job).progress.iteration > 20)
    controller.supervisors()[0].send_signal(signal.SIGTERM)
    controller.wait(lambda: told(controller, job, "was told to leave: the others go on"))
    controller.wait(
        lambda: (
            (resizes := controller.curve(job).resizes)[-1].after.workers == 2
            and resizes[-1].pause is not None
            and len(resizes) > 2
        ),
    )
    view = controller.job(job)
    assert view.phase is not JobPhase.FAILED
    resizes = controller.curve(job).resizes
    assert 1 in [resize.after.workers for resize in resizes]
    assert all(resize.iterations_lost in (0, None) for resize in resizes)
    cancel(controller, job)


def leave(machine: psutil.Process) -> None:
    """Tell a machine to end, as a cloud does that takes it back."""
    machine.send_signal(signal.SIGTERM)


def vanish(machine: psutil.Process) -> None:
    """Take a machine away without a word."""
    for process in (machine, *machine.children(recursive=True)):
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("end", [leave, vanish])
def test_the_successor_of_the_only_worker_goes_on_from_the_checkpoint(
    controller: Controller, open_directory: Path, end: Callable[[psutil.Process], None]
) -> None:
    work = open_directory / "leaving" / end.__name__
    job = controller.submit(training(work, workers=1))
    kept = Path(controller.job(job).checkpoints or "")
    controller.wait(lambda: any(kept.glob("[0-9]*/state.json")))
    end(controller.supervisors()[-1])
    successor = work / f"{job}-w2.jsonl"
    controller.wait(lambda: successor.exists() and successor.read_text().count("\n") > 5, 120)
    first = json.loads(successor.read_text().splitlines()[0])["iteration"]
    assert first > 1
    controller.wait(lambda: controller.job(job).progress.iteration > first)
    cancel(controller, job)
    assert any(kept.iterdir())
