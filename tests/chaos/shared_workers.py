"""Workers of several processes that share a model, as the conductor starts and strikes them."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from random import Random

from scavenger.layout import Layout
from tests.chaos.trainee import DUMP
from tests.chaos.zygote import Forked
from tests.conductor import Start
from tests.integration.shared import start_processes
from worker_agent.pytorch.layouts.tensor import Cut

# Of the layers of `TorchNetwork`.
PLAN: dict[str, Cut] = {"0": "column", "3": "row", "5": "column", "7": "row"}
TO_ALL = (signal.SIGCONT, DUMP)


class SharedWorker:
    """The processes of one worker, and what its supervisor does: they end together.

    Args:
        processes: The processes, in order of their positions.
        place: Where they meet.
        random: Picks the one that a fault strikes.
    """

    def __init__(self, processes: list[Forked], place: str, random: Random) -> None:
        self.processes, self.place, self.random = processes, place, random

    def poll(self) -> int | None:
        """Return its exit code; None while one of them runs."""
        codes = [process.poll() for process in self.processes]
        failed = [code for code in codes if code]
        if failed:
            for process in self.processes:
                process.kill()
        if None in codes:
            return None
        shutil.rmtree(self.place, ignore_errors=True)
        return min(code or 0 for code in codes)

    def wait(self) -> int:
        """Wait until all have ended."""
        return min(process.wait() for process in self.processes)

    def kill(self) -> None:
        """End all of them at once."""
        for process in self.processes:
            process.kill()

    def send_signal(self, number: int, /) -> None:
        """Send a signal to the process that it is meant for, or that it strikes."""
        if number == signal.SIGTERM:
            self.processes[0].send_signal(number)
        elif number in TO_ALL:
            for process in self.processes:
                process.send_signal(number)
        else:
            self.random.choice(self.processes).send_signal(number)


def launch_shared(
    launch: Callable[[Start], Forked], layout: Layout, random: Random
) -> Callable[[Start], SharedWorker]:
    """Return what starts a worker with a layout."""
    return lambda one: SharedWorker(*start_processes(launch, layout, one), random)
