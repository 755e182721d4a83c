"""A job with parameter servers, one of which is killed."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest

from scavenger.schemas.jobs import JobPhase
from tests.controller import Controller

SCRIPT = Path(__file__).parents[1] / "integration" / "trainee.py"


def servers(controller: Controller) -> list[psutil.Process]:
    """The parameter servers that run now, oldest first."""
    return [p for p in controller.trainers() if "worker_agent.parameter_server" in p.cmdline()]


def machine_of(controller: Controller, process: psutil.Process) -> psutil.Process:
    """The first process of the machine that a process runs on."""
    return next(each for each in controller.supervisors() if process in each.children())


@pytest.mark.slow  # the agent and the plan have tests of their own
def test_a_killed_server_is_replaced_and_training_goes_on(
    controller: Controller, open_directory: Path
) -> None:
    work = open_directory / "servers" / "work"
    work.mkdir(parents=True)
    document = {
        "model": {"key": "tests/served", "dataset_size": 240},
        "target": {"epochs": 100_000, "at_batch": 24},
        "limits": {"workers": 2, "batch": 24, "max_cost": "1 USD"},
        "level": "observe",
        "strategy": {"parameter_server": {"servers": 2}},
        "price": "0.36 USD/h",
        "run": {
            "command": [sys.executable, str(SCRIPT)],
            "directory": str(work),
            "env": {"PACE": "0.01"},
        },
    }
    job = controller.submit(document)
    controller.wait(lambda: controller.job(job).progress.iteration > 20)
    view = controller.job(job)
    assert (view.workers_alive, view.servers_alive) == (2, 2)
    victim = servers(controller)[0]
    # The whole machine, so that its supervisor starts nothing again.
    for process in (machine_of(controller, victim), victim):
        process.send_signal(signal.SIGKILL)

    def said(words: str) -> bool:
        return any(words in event.message for event in controller.events(job))

    controller.wait(lambda: said("1 server instead of"))
    controller.wait(lambda: said("and other servers"))
    before = controller.job(job).progress.iteration
    controller.wait(lambda: controller.job(job).progress.iteration > before)
    assert controller.job(job).servers_alive == 2
    controller.ask("POST", f"/v1/jobs/{job}/actions/cancel")
    view = controller.finished(job)
    assert (view.phase, view.servers_alive) == (JobPhase.CANCELLED, 0)
