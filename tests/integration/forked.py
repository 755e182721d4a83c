"""Workers and servers that begin with everything imported: a start costs milliseconds."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from multiprocessing.context import ForkServerProcess

from tests.conductor import Process, Start

PRELOADED = [
    "tests.integration.carrier",
    "tests.integration.streamed",
    "tests.integration.trainee",
    "worker_agent.training.asynchronous",
    "worker_agent.state.checkpoints",
    "worker_agent.training.elastic",
    "worker_agent.pytorch.all_reduce",
    "worker_agent.pytorch.downpour",
    "worker_agent.pytorch.parameter_server",
    "worker_agent.pytorch.sandblaster",
    "worker_agent.parameter_server.coordinator",
    "worker_agent.parameter_server.server",
    "torch._dynamo",  # what the first optimizer of a process imports
]

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOADED)


class Forked:
    """A process, as the conductor handles it."""

    def __init__(self, process: ForkServerProcess) -> None:
        self.process = process

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int:
        self.process.join()
        return self.process.exitcode or 0

    def kill(self) -> None:
        self.process.kill()

    def send_signal(self, number: int, /) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


def fork(start: Start) -> Process:
    """Start a worker as a fork of a process that has imported what it needs."""
    process = CONTEXT.Process(target=become, args=(start,), daemon=True)
    process.start()
    return Forked(process)


def become(start: Start) -> None:
    """Be the process that was asked for."""
    log = os.open(start.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(start.environment)
    os.chdir(start.directory)
    match start.command:
        case ["-m", module, *_]:
            sys.argv = start.command[1:]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", text, *arguments]:
            sys.argv = ["-c", *arguments]
            exec(text, {"__name__": "__main__"})  # as an interpreter does
        case _:
            sys.argv = start.command
            runpy.run_path(start.command[0], run_name="__main__")
