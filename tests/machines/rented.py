"""A computer for each machine of a fake cloud: it boots and ends when the machine does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.hooks import Hooks
from tests.fakecloud.machine import Machine
from tests.machines.computer import IMAGE_MODULES, Computer
from tests.machines.lab import Lab
from tests.machines.metadata import Kind


@dataclass
class RentedComputers:
    """Boots computers as a fake cloud's hooks tell; one that powers itself off tells the cloud.

    Attributes:
        cloud: Its machines end when their computers do.
        lab: Where they are.
        root: Directory for their disks.
        kind: Whose metadata they find.
        script_of: Returns the start-up script that a machine was launched with.
        modules: What their image brings for Python.
    """

    cloud: FakeCloud
    lab: Lab
    root: Path
    kind: Kind
    script_of: Callable[[Machine], str]
    modules: Sequence[str] | None = IMAGE_MODULES
    computers: dict[str, Computer] = field(default_factory=dict)

    def attach(self) -> None:
        """Hear of the machines that begin from now on."""
        self.cloud.hooks = Hooks(self._begin, self._end)

    def _begin(self, machine: Machine) -> None:
        computer = self.computers[machine.id] = Computer(self.root / machine.id, self.modules)
        self.lab.boot(computer, self.script_of(machine), self.kind, machine.id)
        threading.Thread(target=self._watch, args=(machine.id, computer), daemon=True).start()

    def _watch(self, machine: str, computer: Computer) -> None:
        """Wait until a computer is off, and let the cloud know."""
        computer.wait_until_off()
        computer.unplug()
        self.cloud.power_off(machine)

    def _end(self, machine: Machine) -> None:
        self.computers[machine.id].unplug()
