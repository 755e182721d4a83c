"""Plays one cell: a job of two workers, from whom machines are taken back at a certain moment."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from scavenger.schemas.events import EventView
from tests.interruptions.cells import Cell
from tests.interruptions.judge import CHECKPOINT_EVERY, Note, Verdict, judge, read_notes
from tests.interruptions.stage import Stage, do_nothing
from tests.interruptions.trainee import BATCH, SAMPLES
from tests.machines.computer import processes_of

T = TypeVar("T")

JOB_LABEL = "scavenger-job"
SCRIPT = Path(__file__).with_name("trainee.py")
EPOCHS = 20  # of ten iterations; what a cell does before them is slowed down until it is done
WARM = 25  # iterations after which a job trains well, and has a checkpoint
STEADY, SLOW, FAST = 0.05, 0.8, 0.0  # seconds of an iteration
PATIENCE = 300.0
PRICES: Mapping[str, Mapping[str, str]] = {"aws": {}, "google": {"price": "0.2 USD/h"}}
BALLAST = 48 << 20  # bytes: writing them takes long enough to be met


@dataclass
class Course:
    """A cell that is being played.

    Attributes:
        work: Where its job runs.
        victims: Workers whose machines are taken back.
        struck_at: When that was decided, in seconds since the epoch.
    """

    stage: Stage
    cell: Cell
    work: Path
    job: str = ""
    victims: tuple[str, ...] = ()
    struck_at: float = 0.0

    def worker(self, number: int) -> str:
        return f"{self.job}-w{number}"

    def choose(self, leader: str, other: str) -> tuple[str, ...]:
        """Return the victims of two workers."""
        return {"leader": (leader,), "other": (other,), "all": (leader, other)}[self.cell.victims]

    def steer(self, name: str, content: str = "") -> None:
        """Write a file that the workers read; never half of it."""
        fresh = self.work / f".{name}"
        fresh.write_text(content)
        fresh.rename(self.work / name)

    def release(self, name: str) -> None:
        """Let the workers go on that wait for the end of a file."""
        (self.work / name).unlink(missing_ok=True)

    def wait(self, what: str, condition: Callable[[], T | bool | None]) -> T | bool:
        """Wait until something is true; returns what the condition does."""
        deadline = time.monotonic() + PATIENCE
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not happen within {PATIENCE:.0f} s")
            time.sleep(0.02)
        return value

    def newest(self) -> dict[str, Note]:
        """Return the last note of each worker."""
        return {note.worker: note for note in read_notes(self.work)}

    def events(self, kind: str) -> list[EventView]:
        return [each for each in self.stage.controller.events(self.job) if each.kind == kind]

    def named(self, kind: str, key: str) -> set[str]:
        """Return what events of a kind name."""
        return {str(event.data[key]) for event in self.events(kind)}

    def wait_for_hello(self, worker: str) -> None:
        self.wait(f"the hello of {worker}", lambda: worker in self.named("hello", "worker"))

    def wait_for_training(self) -> tuple[str, str]:
        """Wait until two workers have trained together for a while; return them, leader first."""

        def is_warm() -> bool:
            newest = list(self.newest().values())
            return len(newest) == 2 and min(note.iteration for note in newest) > WARM

        self.wait("training", is_warm)
        leads = {note.worker: note.leads for note in self.newest().values()}
        leader, other = sorted(leads, key=lambda worker: not leads[worker])
        return leader, other

    def take(self, *victims: str, has_notice: bool) -> None:
        """Take machines back, and let the job wait for what follows."""
        self.steer("pace", str(SLOW))
        self.stage.take(victims, has_notice=has_notice)
        if has_notice:
            self.wait(
                f"a notice to {victims}",
                lambda: self.named("interruption_notice", "vm").issuperset(victims),
            )
        else:
            self.wait(f"the end of {victims}", lambda: not any(map(self.is_on, victims)))

    def strike(self, *victims: str) -> None:
        """Let the interruption happen that is played."""
        self.victims, self.struck_at = victims, time.time()
        self.take(*victims, has_notice=self.cell.has_notice)

    def is_on(self, worker: str) -> bool:
        computer = self.stage.computer_of(worker)
        return computer is not None and any(True for _ in computer.processes())


def play(stage: Stage, cell: Cell) -> Verdict:
    """Let a cell happen, and judge it."""
    began = time.monotonic()
    work = stage.root / str(cell).replace(":", "-")
    work.mkdir()
    course = Course(stage, cell, work)
    course.steer("pace", str(STEADY))
    try:
        COURSES[cell.moment](course)
        course.wait("training with another machine", lambda: has_recovered(course))
        course.steer("pace", str(FAST))
        return finish(course, time.monotonic() - began)
    except TimeoutError as error:
        return Verdict(cell, (str(error),), seconds=time.monotonic() - began)
    finally:
        stage.roll.on_begin = do_nothing


def submit(course: Course, **env: str) -> None:
    """Submit the job of a cell."""
    document = {
        "model": {"key": f"interruptions/{course.work.name}", "dataset_size": SAMPLES},
        "target": {"epochs": EPOCHS, "at_batch": BATCH},
        "limits": {"workers": 2, "batch": BATCH, "max_cost": "5 USD"},
        "level": "observe",
        "run": {
            "command": ["python", str(SCRIPT)],
            "directory": str(course.work),
            "env": env,
            "checkpoints": {"every": f"{CHECKPOINT_EVERY:.0f}s"},
        },
        **PRICES[course.stage.kind],
    }
    course.job = course.stage.controller.submit(document)


def at_launch(course: Course) -> None:
    """Machines are taken back before their computers have read a line of their script."""
    numbers = course.choose("1", "2")

    def begin(worker: str) -> None:
        if worker.rpartition("-w")[2] in numbers:
            course.struck_at = time.time()
            course.stage.take([worker], has_notice=course.cell.has_notice)

    course.stage.roll.on_begin = begin
    course.steer("pace", str(SLOW))
    submit(course)
    course.victims = tuple(course.worker(int(number)) for number in numbers)


def at_boot(course: Course) -> None:
    """Machines are taken back while their script installs the agent."""
    for number in ("1", "2"):
        course.steer(f"before-w{number}")
    submit(course)
    victims = course.choose(course.worker(1), course.worker(2))
    course.wait(f"the boot of {victims}", lambda: all(has_begun(course, v) for v in victims))
    course.strike(*victims)
    for number in ("1", "2"):
        course.release(f"before-w{number}")


def at_join(course: Course) -> None:
    """The first has said hello and waits for the second, which is about to."""
    course.steer("before-w2")
    submit(course)
    first, second = course.worker(1), course.worker(2)
    course.wait_for_hello(first)
    course.wait(f"the script on {second}", (course.work / f"{second}.up").exists)
    course.strike(*course.choose(first, second))
    course.release("before-w2")


def at_train(course: Course) -> None:
    """Both train."""
    submit(course)
    course.strike(*course.choose(*course.wait_for_training()))


def at_resize(course: Course) -> None:
    """One of two has left, and another is told to take its place, but has not done so."""
    submit(course)
    leader, other = course.wait_for_training()
    third = course.worker(3)
    course.steer("before-w3")
    course.take(other, has_notice=True)
    course.wait(f"the end of {other}", lambda: other in course.named("exit", "worker"))
    course.wait(f"the script on {third}", (course.work / f"{third}.up").exists)
    course.steer("held")
    before = len(course.events("resize"))
    course.release("before-w3")
    course.wait("the order to resize", lambda: len(course.events("resize")) > before)
    course.strike(*course.choose(leader, third))
    course.release("held")


def at_checkpoint(course: Course) -> None:
    """The leader writes a checkpoint."""
    submit(course, BALLAST=str(BALLAST))
    pair = course.wait_for_training()
    kept = Path(course.stage.controller.job(course.job).checkpoints or "")
    course.wait("a checkpoint being written", lambda: any(kept.glob(".*.unfinished")))
    course.strike(*course.choose(*pair))


def at_drain(course: Course) -> None:
    """They are leaving as they were told; the cloud tells them again, or does not wait for it."""
    submit(course)
    pair = course.wait_for_training()
    victims = course.choose(*pair)
    course.steer("held")
    course.take(*victims, has_notice=True)
    course.strike(*victims)
    if course.cell.has_notice:
        for victim in victims:
            shut_down(course, victim)
    course.release("held")


COURSES: Mapping[str, Callable[[Course], None]] = {
    "launch": at_launch,
    "boot": at_boot,
    "join": at_join,
    "train": at_train,
    "resize": at_resize,
    "checkpoint": at_checkpoint,
    "drain": at_drain,
}


def has_begun(course: Course, worker: str) -> bool:
    """Whether the script of a machine runs."""
    computer = course.stage.computer_of(worker)
    return computer is not None and computer.has_deadline()


def shut_down(course: Course, worker: str) -> None:
    """Send a supervisor SIGTERM, as the operating system does that is told to power off."""
    computer = course.stage.computer_of(worker)
    for process in () if computer is None else computer.processes():
        with suppress(psutil.Error):
            if "worker_agent.supervisor" in process.cmdline():
                process.send_signal(signal.SIGTERM)


def has_recovered(course: Course) -> bool:
    """Whether two machines train together that were not taken back."""
    newest = course.newest()
    training = [
        note.attempt
        for worker, note in newest.items()
        if worker not in course.victims and note.at > course.struck_at
    ]
    return len(training) >= 2 and training.count(max(training)) == 2


def finish(course: Course, seconds: float) -> Verdict:
    """Wait until all is over, and judge it."""
    stage, job, cell = course.stage, course.job, course.cell
    stage.controller.finished(job, PATIENCE)
    machines = stage.of_job(job)
    course.wait("the end of all machines", lambda: are_gone(stage, job))
    view, bill = stage.controller.job(job), stage.rental.cloud.bill().of(**{JOB_LABEL: job})
    redone, wrong = judge(cell, course.work, view, bill, course.struck_at)
    left = [note.at for worker, note in course.newest().items() if worker in course.victims]
    asked = [e.at.timestamp() for e in course.events("launch")]
    later = [at - course.struck_at for at in asked if at > course.struck_at]
    is_timed = cell.has_notice and cell.moment in ("train", "checkpoint")
    return Verdict(
        cell,
        (*wrong, *(() if bill > 0 else (f"{len(machines)} machines, and no bill",))),
        redone=redone,
        left_after=max(left) - course.struck_at if left and is_timed else None,
        asked_after=min(later, default=None) if is_timed else None,
        seconds=seconds,
    )


def are_gone(stage: Stage, job: str) -> bool:
    """Whether no machine of a job exists, and no process of one."""
    stage.rental.cloud.settle()
    gone = {truth.description.id for truth in stage.rental.cloud.machines() if truth.gone_at}
    computers = [stage.computer_of(worker) for worker in stage.of_job(job)]
    return all(machine.id in gone for machine in stage.of_job(job).values()) and not any(
        True for one in computers if one is not None for _ in processes_of(one.root)
    )
