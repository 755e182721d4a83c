"""Stage: a controller, and a cloud whose computers it rents, for one cell after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from tests.controller import Controller
from tests.fakecloud.machine import Machine, exports_of
from tests.machines.computer import Computer
from tests.machines.lab import open_loopback
from tests.machines.metadata import Kind
from tests.machines.rental import (
    COMPUTE_ENGINE,
    EC2,
    SDK_ENVIRONMENT,
    Rental,
    StandIn,
    controller_options,
    open_rental,
)

STAND_INS: Mapping[Kind, StandIn] = {"aws": EC2, "google": COMPUTE_ENGINE}
NOTICE: Mapping[Kind, float] = {"aws": 120.0, "google": 30.0}


def do_nothing(worker: str) -> None:
    """Let a machine begin."""


@dataclass
class Roll:
    """The machines of a cloud by the workers that they were launched for.

    Attributes:
        on_begin: Called with each worker whose machine begins, before its computer boots.
    """

    script: str
    machines: dict[str, Machine] = field(default_factory=dict)
    on_begin: Callable[[str], None] = do_nothing

    def note(self, machine: Machine) -> None:
        """Write down a machine that begins."""
        worker = exports_of(machine.request.environment[self.script])["SCAVENGER_WORKER"]
        self.machines[worker] = machine
        self.on_begin(worker)


@dataclass(frozen=True, slots=True)
class Stage:
    """A controller and its cloud.

    Attributes:
        root: Directory for jobs.
    """

    kind: Kind
    root: Path
    controller: Controller
    rental: Rental
    roll: Roll

    def of_job(self, job: str) -> dict[str, Machine]:
        """Return the machines of a job by worker, oldest first."""
        return {name: one for name, one in self.roll.machines.items() if name.startswith(job)}

    def computer_of(self, worker: str) -> Computer | None:
        """Return the computer of a worker, once there is one."""
        machine = self.roll.machines.get(worker)
        return None if machine is None else self.rental.computers.computers.get(machine.id)

    def take(self, workers: Collection[str], *, has_notice: bool) -> None:
        """Take the machines of workers back, at once or after a notice."""
        for worker in workers:
            seconds = NOTICE[self.kind] if has_notice else 0.0
            self.rental.cloud.interrupt(self.roll.machines[worker].id, seconds)
        self.rental.cloud.settle()


@contextmanager
def open_stage(kind: Kind, root: Path) -> Iterator[Stage]:
    """Start a controller with a cloud; at the end no process of them is left."""
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o755)
    stand_in = STAND_INS[kind]
    roll = Roll(stand_in.script)
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, SDK_ENVIRONMENT))
        lab = stack.enter_context(open_loopback())
        rental = stack.enter_context(open_rental(stand_in, lab, root, roll.note))
        options = controller_options(lab, rental.clouds_file)
        controller = stack.enter_context(Controller(root / "home", options))
        yield Stage(kind, root, controller, rental, roll)
