"""Machines: a fake cloud whose machines run agents, each a thread that speaks as a real one does.

They hold what they were told and measured, ask again when they hear nothing, and train together:
the leader goes on when all members have entered its generation.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar
from uuid import uuid4

from scavenger.cluster import ClusterConfig
from scavenger.measurement.steps import StepColumns
from scavenger.protocol import (
    CommandExit,
    Directive,
    EnrolmentRequest,
    FinishReason,
    Hello,
    Progress,
    Regrouped,
    StepReport,
)
from scavenger.worker_env import WorkerEnv
from tests.builders import steps
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.machine import State
from tests.fakecloud.refusal import Refusal
from worker_agent.controller import ControllerClient
from worker_agent.errors import ControllerRefused, ControllerUnreachable

T = TypeVar("T")

ROWS, NOISE_SCALE = 40, 200.0


class Cloud(FakeCloud):
    """A cloud that tells what its machines were launched with."""

    def running(self) -> Mapping[str, Mapping[str, str]]:
        """Return the environment of each machine that runs, by its id."""
        with self._moment() as now:
            return {
                machine.id: machine.request.environment
                for machine in self._fleet
                if machine.state_at(now) is State.RUNNING
            }


@dataclass
class Training:
    """What the machines of one job share.

    Attributes:
        entered: The members that are in a generation.
        rounds: How often the leader reported since all of them train on what was chosen.
    """

    entered: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    iteration: int = 0
    rounds: int = 0


class Machines:
    """Runs an agent on each machine of a cloud as soon as that has booted.

    Args:
        cloud: The cloud.
        enough: Reports after which training has reached its goal.
        pause: Seconds between two reports.

    Attributes:
        wrong: What no machine should be told.
        rows: Iterations each machine has measured and handed over.
        unheard: How often no controller answered.
    """

    def __init__(self, cloud: Cloud, enough: int, pause: float) -> None:
        self.cloud, self.enough, self.pause = cloud, enough, pause
        self.wrong: list[str] = []
        self.rows: dict[str, int] = {}
        self.unheard = 0
        self.stopping = threading.Event()
        self.turn = threading.Lock()
        self._jobs: defaultdict[str, Training] = defaultdict(Training)
        self._threads: dict[str, threading.Thread] = {}

    def tend(self) -> None:
        """Start what has booted."""
        for machine, environment in self.cloud.running().items():
            if machine not in self._threads:
                agent = Agent(self, machine, environment, self._jobs[environment["SCAVENGER_JOB"]])
                self._threads[machine] = threading.Thread(target=agent.live, name=machine)
                self._threads[machine].start()

    def stop(self) -> None:
        """Let all agents fall silent."""
        self.stopping.set()
        for thread in self._threads.values():
            thread.join()


class Ended(Exception):
    """The machine is no more."""


class Agent:
    """What runs on one machine."""

    def __init__(
        self, machines: Machines, machine: str, environment: Mapping[str, str], training: Training
    ) -> None:
        self.machines, self.machine, self.training = machines, machine, training
        self.worker = environment["SCAVENGER_WORKER"]
        self.client = ControllerClient(
            WorkerEnv(
                controller=environment["SCAVENGER_CONTROLLER"],
                token=environment["SCAVENGER_TOKEN"],
                job=environment["SCAVENGER_JOB"],
                worker=self.worker,
                prepaid=float(environment["SCAVENGER_PREPAID"]),
            )
        )
        self.directive: Directive | None = None
        self.generation = self.sequence = 0

    def live(self) -> None:
        """Enrol, train as told until the goal is reached, and power the machine off."""
        with self.client._http, suppress(Ended):
            nonce = uuid4().hex
            self._ask(lambda: self.client.enrol(EnrolmentRequest(self.worker, nonce)))
            hello = Hello(self.worker, f"10.0.0.1:{int(self.machine[2:], 16)}")
            self.directive = self._ask(lambda: self.client.hello(hello)).directive
            while not self._has_trained():
                self._report()
                self._renew()
                if self.machines.stopping.wait(self.machines.pause):
                    return
            self._finish()

    def _report(self, finished: FinishReason | None = None) -> None:
        """Say where training stands, with what was measured where this one leads."""
        directive, steps, regrouped = self.directive, StepColumns(), None
        rank = None if directive is None else directive.rank_of(self.worker)
        if directive is not None and rank is not None:
            regrouped = self._enter(directive, rank)
            if rank == 0 and self._is_whole(directive):
                steps = self._train(directive)
        progress = Progress(self.generation, self.training.iteration, 0, 1.0, {"accuracy": 0.98})
        report = StepReport(
            self.worker, progress, self.sequence, steps, regrouped=regrouped, finished=finished
        )
        reply = self._ask(lambda: self.client.report(report))
        self.directive = reply.directive
        self.sequence += len(steps)
        self.machines.rows[self.worker] = self.sequence
        if reply.next_sequence != self.sequence:
            self.machines.wrong.append(f"{self.worker} handed over {self.sequence}, not {reply}")

    def _enter(self, directive: Directive, rank: int) -> Regrouped | None:
        """Join a generation one is a member of."""
        with self.machines.turn:
            self.training.entered[directive.generation].add(self.worker)
        if self.generation == directive.generation:
            return None
        self.generation = directive.generation
        return Regrouped(directive.generation, 0.0, 0) if rank == 0 else None

    def _is_whole(self, directive: Directive) -> bool:
        """Whether all members have entered a generation."""
        with self.machines.turn:
            members = {member.worker for member in directive.members}
            return members <= self.training.entered[directive.generation]

    def _train(self, directive: Directive) -> StepColumns:
        """Go on with training, and return what was measured."""
        columns = measured(directive.config, self.training.iteration)
        self.training.iteration += ROWS
        self.training.rounds += directive.purpose == "train"
        return columns

    def _has_trained(self) -> bool:
        """Whether this one takes part and the goal is reached."""
        return self.generation > 0 and self.training.rounds >= self.machines.enough

    def _renew(self) -> None:
        """Ask for more time, and use it."""
        left = self._ask(lambda: self.client.lease(self.worker)).remaining
        self._obey(lambda: self.machines.cloud.renew(self.machine, left))

    def _finish(self) -> None:
        """Say that the goal is reached and that the command ended, and power off."""
        self._report("target")
        self._ask(lambda: self.client.exit(CommandExit(self.worker, 0, "")))
        self._obey(lambda: self.machines.cloud.interrupt(self.machine))

    def _obey(self, order: Callable[[], None]) -> None:
        """Do something to the machine, unless it has ended meanwhile."""
        with suppress(Refusal):
            order()

    def _ask(self, say: Callable[[], T]) -> T:
        """Say something until it is answered, as long as the machine runs."""
        while self.machine in self.machines.cloud.running():
            try:
                return say()
            except ControllerUnreachable as error:
                self.machines.unheard += 1
                if "status 500" in str(error):
                    self.machines.wrong.append(f"{self.worker}: {error}")
            except ControllerRefused as error:
                if self.machine in self.machines.cloud.running():
                    self.machines.wrong.append(f"{self.worker} runs and was told: {error}")
                raise Ended from error
            if self.machines.stopping.wait(self.machines.pause / 2):
                break
        raise Ended


def measured(config: ClusterConfig, first: int) -> StepColumns:
    """Return iterations of a generation from one on, as a leader measures them."""
    sync = 0.001 if config.workers > 1 else 0.0
    return replace(
        steps(ROWS, NOISE_SCALE, replace(config, workers=max(config.workers, 2))),
        iteration=tuple(range(first, first + ROWS)),
        sync_time=(sync,) * ROWS,
    )
