"""A computer for each machine of a fake cloud: it boots and ends when the machine does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Self

from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.hooks import Hook, Hooks
from tests.fakecloud.machine import Machine
from tests.machines.computer import IMAGE_MODULES, Computer
from tests.machines.lab import Lab
from tests.machines.metadata import Kind


def ignore(machine: Machine) -> None:
    """Do nothing about a machine."""


@dataclass
class RentedComputers:
    """Boots computers as a fake cloud's hooks tell; one that powers itself off tells the cloud.

    It is a context manager: when it is left, every computer is off and no further one boots.

    Attributes:
        cloud: Its machines end when their computers do.
        lab: Where they are.
        root: Directory for their disks.
        kind: Whose metadata they find.
        script_of: Returns the start-up script that a machine was launched with.
        modules: What their image brings for Python.
        began: Called before the computer of a machine boots.
        ended: Called when the computer of a machine is off.
    """

    cloud: FakeCloud
    lab: Lab
    root: Path
    kind: Kind
    script_of: Callable[[Machine], str]
    modules: Sequence[str] | None = IMAGE_MODULES
    began: Hook = ignore
    ended: Hook = ignore
    computers: dict[str, Computer] = field(default_factory=dict)
    _is_closed: bool = False
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        self.attach()
        return self

    def __exit__(self, *_: object) -> None:
        # A thread of the door may be booting a computer right now, which must not be forgotten.
        with self._turn:
            self._is_closed = True
        for computer in self.computers.values():
            computer.unplug()

    def attach(self) -> None:
        """Hear of the machines that begin from now on."""
        self.cloud.hooks = Hooks(self._begin, self._end)

    def _begin(self, machine: Machine) -> None:
        with self._turn:
            if self._is_closed:
                return
            self.began(machine)
            computer = self.computers[machine.id] = Computer(self.root / machine.id, self.modules)
            notice = partial(self._notice, machine.id)
            self.lab.boot(computer, self.script_of(machine), self.kind, machine.id, notice)
        threading.Thread(target=self._watch, args=(machine.id, computer), daemon=True).start()

    def _notice(self, machine: str) -> datetime | None:
        """Return when a machine is taken back, if it may know that by now."""
        now = self.cloud.clock.now()
        ends_at = self.cloud.find(machine).notice_at(now)
        return None if ends_at is None else datetime.now(UTC) + timedelta(seconds=ends_at - now)

    def _watch(self, machine: str, computer: Computer) -> None:
        """Wait until a computer is off, and let the cloud know."""
        computer.wait_until_off()
        computer.unplug()
        self.cloud.power_off(machine)

    def _end(self, machine: Machine) -> None:
        self.computers[machine.id].unplug()
        self.ended(machine)
