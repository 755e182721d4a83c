"""Workers below their supervisors: killed, stopped and told to end in the middle of training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import TypeAdapter

from scavenger.protocol import CommandExit, EnrolmentReply, VmLease, WorkerSpec
from tests.conductor import Conductor, Start
from tests.integration.test_supervisor import STARTS

TRAINEE = Path(__file__).parent / "trainee.py"
EXIT = TypeAdapter(CommandExit)
LEASE = TypeAdapter(VmLease).dump_json(VmLease(600.0))
ENROLLED = TypeAdapter(EnrolmentReply)


@dataclass
class Machines(Conductor):
    """A conductor whose workers have supervisors, and who hears how their commands end."""

    worker: WorkerSpec = field(default_factory=lambda: WorkerSpec("server"))
    exits: list[CommandExit] = field(default_factory=list)

    def answer(self, what: str, body: bytes) -> bytes:
        if what == "enrol":
            return ENROLLED.dump_json(EnrolmentReply("token", "of all of us", {}, self.worker))
        return LEASE if what == "lease" else super().answer(what, body)

    def note(self, what: str, body: bytes) -> str:
        if what == "exit":
            self.exits.append(EXIT.validate_json(body))
            return self.exits[-1].worker
        return super().note(what, body)

    def trainer(self, worker: str) -> psutil.Process:
        (trainer,) = psutil.Process(self.processes[worker].pid).children()
        return trainer

    def ends(self, worker: str) -> list[CommandExit]:
        return [told for told in self.exits if told.worker == worker]


def supervised(start: Start) -> subprocess.Popen[bytes]:
    with open(start.log, "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", STARTS],
            cwd=start.directory,
            env={**start.environment, "SCAVENGER_SPOOL": str(start.log.with_suffix(".spool"))},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


@contextmanager
def machines(directory: Path, **changes: Any) -> Iterator[Machines]:
    ours = {"PACE": "0.01", "PYTHONPATH": str(Path(__file__).parents[2])}
    worker = WorkerSpec(command=(sys.executable, str(TRAINEE)), **changes)
    with Machines(directory, [], environment=ours, launch=supervised, worker=worker) as found:
        try:
            yield found
        finally:
            for process in found.processes.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_worker_says_hello_again_from_its_own_machine(tmp_path: Path) -> None:
    with machines(tmp_path) as conductor:
        for name in ("w0", "w1"):
            conductor.start(name)
        conductor.wait_applied(conductor.order(["w0", "w1"], 24), iterations=10)
        before = conductor.hellos["w1"]
        conductor.trainer("w1").kill()
        conductor.wait(lambda: conductor.hellos["w1"] != before)
        (told,) = conductor.ends("w1")
        assert (told.code, told.restarts) == (-9, True)
        conductor.wait_applied(conductor.order(["w0", "w1"], 24, repairs=True), iterations=10)


@pytest.mark.slow
def test_the_only_worker_goes_on_from_its_checkpoint_when_it_was_killed(tmp_path: Path) -> None:
    with machines(tmp_path, checkpoints=str(tmp_path / "kept"), checkpoint_every=0.2) as conductor:
        conductor.start("w0")
        reached = conductor.wait_applied(conductor.order(["w0"], 24), iterations=100)
        before = conductor.hellos["w0"]
        conductor.trainer("w0").kill()
        conductor.wait(lambda: conductor.hellos["w0"] != before)
        report = conductor.wait_applied(conductor.order(["w0"], 24, repairs=True))
        assert report.steps.iteration[0] > reached.progress.iteration // 4


@pytest.mark.slow
def test_a_machine_told_to_end_leaves_the_others_training(tmp_path: Path) -> None:
    with machines(tmp_path) as conductor:
        for name in ("w0", "w1"):
            conductor.start(name)
        conductor.wait_applied(conductor.order(["w0", "w1"], 24), iterations=10)
        os.kill(conductor.processes["w1"].pid, signal.SIGTERM)
        conductor.wait(lambda: conductor.ends("w1"))
        (told,) = conductor.ends("w1")
        assert (told.code, told.restarts) == (-15, False)
        assert told.cause.startswith("the machine was told to end; the command ended ")
        last = [r for r in conductor.reports if r.worker == "w1"][-1]
        assert last.finished == "released"
        assert not any(r.broken for r in conductor.reports), "nothing is lost by leaving in order"
        conductor.wait_applied(conductor.order(["w0"], 24), iterations=10)


@pytest.mark.slow
def test_a_worker_that_is_stopped_is_started_again_and_the_one_that_waits_for_it_is_not(
    tmp_path: Path,
) -> None:
    with machines(tmp_path, stall=3.0) as conductor:
        for name in ("w0", "w1"):
            conductor.start(name)
        conductor.wait_applied(conductor.order(["w0", "w1"], 24), iterations=10)
        before = conductor.hellos["w1"]
        conductor.trainer("w1").send_signal(signal.SIGSTOP)
        conductor.wait(lambda: conductor.hellos["w1"] != before)
        (told,) = conductor.exits
        assert (told.worker, told.restarts) == ("w1", True)
        assert "no progress for " in told.cause
        conductor.wait_applied(conductor.order(["w0", "w1"], 24, repairs=True), iterations=10)
