"""`NextProcess`: the script's process of the next generation, started while this one's trains.

Most of a restart is the import of the framework. So the next process starts beside the old one,
and waits where the script makes its strategy, until the old one has saved its state and ended.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from scavenger.protocol import Directive
from worker_agent.launcher.environment import LauncherFiles
from worker_agent.launcher.places import MachinePort, Placement, port_key, read_quietly

QUESTION_PAUSE = 0.2  # seconds between two questions to the same machine
PREPARING_PATIENCE = 60.0  # after which training stops for the change in any case

Start = Callable[[Directive, Placement, LauncherFiles], "subprocess.Popen[bytes]"]


class NextProcess:
    """Prepares one machine's process of a generation, and tells the others once it waits.

    Args:
        directive: The generation.
        rank: Rank of this machine's worker in it.
        port: Where this machine publishes its port.
        files: Files of the process.
        start: Starts it.

    Attributes:
        placement: Where all processes are, once it has started.
    """

    def __init__(
        self, directive: Directive, rank: int, port: MachinePort, files: LauncherFiles, start: Start
    ) -> None:
        self.directive, self.rank, self.port = directive, rank, port
        self.files, self.start = files, start
        self.placement: Placement | None = None
        self.child: subprocess.Popen[bytes] | None = None
        self.places: dict[str, str] = {}
        self.waiting: set[str] = set()
        self.began_at = self.asked_at = time.monotonic()
        port.choose(directive.generation)

    def advance(self) -> None:
        """Do what can be done without waiting."""
        if self.child is not None or time.monotonic() - self.asked_at < QUESTION_PAUSE:
            return
        self.asked_at = time.monotonic()
        machines = [member.address for member in self.directive.members]
        for machine in machines:
            port = read_quietly(machine, port_key(self.directive.generation))
            if port is None:
                return
            self.places[machine] = f"{machine.rpartition(':')[0]}:{port}"
        places = tuple(self.places[machine] for machine in machines)
        self.placement = Placement(places, self.rank, self.rank)
        self.child = self.start(self.directive, self.placement, self.files)

    @property
    def is_waiting(self) -> bool:
        """Whether the process is at its gate, or has failed and will never come there."""
        has_ended = self.child is not None and self.child.poll() is not None
        return has_ended or self.files.arrived.exists()

    def are_all_waiting(self) -> bool:
        """Whether every process of the generation waits, or has been waited for long enough."""
        if time.monotonic() - self.began_at > PREPARING_PATIENCE:
            return True
        if time.monotonic() - self.asked_at > QUESTION_PAUSE:
            self.asked_at = time.monotonic()
            key = waiting_key(self.directive.generation)
            for member in self.directive.members:
                if member.worker not in self.waiting and read_quietly(member.address, key):
                    self.waiting.add(member.worker)
        return len(self.waiting) == len(self.directive.members)

    def end(self) -> None:
        """End the process; it has done nothing yet."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()
        self.child = None


def waiting_key(generation: int) -> str:
    """Return the key that tells that a machine's process of a generation is at its gate."""
    return f"waiting/{generation}"
