"""A parameter server, whose coordinator is forked by a process that has no threads.

A coordinator that were an interpreter of its own would need seconds to start, as often as it is
killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import worker_agent.parameter_server.__main__ as program
from worker_agent.frameworks import load_line_search_rule
from worker_agent.parameter_server.coordinator import CoordinatorKeeper, coordinate
from worker_agent.parameter_server.lbfgs_client import CoordinatorClient

COORDINATOR = Path("coordinator.pid")  # in the directory of the job
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl
REPEATED = 0.1  # of a coordinator's requests arrive twice


def main() -> None:
    """Serve until killed."""
    nursery = Nursery()
    program.CoordinatorKeeper = lambda: CoordinatorKeeper(nursery.launch)  # type: ignore
    program.main()


class Nursery:
    """A process that forks coordinators for a server, one after the other.

    It is forked before its server starts threads.
    """

    def __init__(self) -> None:
        self.orders, theirs = Pipe()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
            self.orders.close()
            fork_coordinators(theirs)
            os._exit(0)
        theirs.close()

    def launch(self, first: str) -> ForkedCoordinator:
        """Start a coordinator for the server at an address."""
        self.orders.send(first)
        return ForkedCoordinator(self.orders.recv(), self.orders)


class ForkedCoordinator:
    """Implements `worker_agent.parameter_server.coordinator.CoordinatorHandle`."""

    def __init__(self, process: int, orders: Connection) -> None:
        self.process, self.orders = process, orders
        fresh = COORDINATOR.with_suffix(".new")
        fresh.write_text(str(process))
        fresh.rename(COORDINATOR)  # never half written

    def wait(self) -> int:
        code: int = self.orders.recv()
        return code

    def kill(self) -> None:
        os.kill(self.process, signal.SIGKILL)


def fork_coordinators(orders: Any) -> None:
    """Fork a coordinator for each order, and tell its process and how it has ended.

    Returns once the server is gone, which may be noticed before the signal of its death comes.
    """
    while True:
        try:
            first = orders.recv()
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
            repeat_requests(Random(first))
            coordinate(first, os.environ["SCAVENGER_JOB_SECRET"], load_line_search_rule())
            os._exit(0)
        orders.send(child)
        orders.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def repeat_requests(random: Random) -> None:
    """Let some of a coordinator's requests arrive twice."""
    for name in ("save", "combine", "commit"):
        request = getattr(CoordinatorClient, name)

        def repeated(client: CoordinatorClient, *arguments: Any, request: Any = request) -> Any:
            if random.random() < REPEATED:
                request(client, *arguments)
            return request(client, *arguments)

        setattr(CoordinatorClient, name, repeated)
