"""Zygote: a process that has imported a framework and forks a worker whenever one is asked for.

Starting an interpreter and importing a framework costs seconds; a fork takes milliseconds. The
zygote starts no thread of its own, so what it forks is as good as a process that began from
nothing. Every worker is a process of its own, with its own log, killed by its own id.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.conductor import Start

READY = "ready\n"
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl


class Forked:
    """One worker, as its starter sees it."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.code: int | None = None
        self.has_ended = threading.Event()

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        return self.code

    def wait(self) -> int:
        """Wait until it has ended."""
        self.has_ended.wait()
        assert self.code is not None
        return self.code

    def kill(self) -> None:
        """End it at once, stopped or not."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int, /) -> None:
        """Send a signal, if it has not ended."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, number)


class Zygote:
    """The starter's side: asks for workers and hears how they end. Safe to share by threads."""

    def __init__(self, framework: str = "pytorch") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.zygote", framework],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self.workers: dict[int, Forked] = {}
        self.started: int | None = None
        self.news = threading.Condition()
        self.asking = threading.Lock()
        self.listener = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Zygote:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == READY, "the zygote could not be born"
        self.listener.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.listener.join()
        self.process.stdout.close()

    def launch(self, start: Start) -> Forked:
        """Start a worker, the trainee; a command stands for the program of a server."""
        assert self.process.stdin is not None
        asked = {
            "is_server": bool(start.command),
            "directory": str(start.directory),
            "environment": start.environment,
            "log": str(start.log),
        }
        with self.asking:
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
            with self.news:
                self.news.wait_for(lambda: self.started is not None)
                process, self.started = self.started, None
                assert process is not None
                return self.workers[process]

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            process, code = json.loads(line)
            with self.news:
                if code is None:
                    self.workers[process] = Forked(process)
                    self.started = process
                else:
                    ended = self.workers.pop(process)
                    ended.code = code
                    ended.has_ended.set()
                self.news.notify_all()


def main() -> None:
    """Fork what is asked for, line by line, and tell who has ended; end with the one who asks."""
    sys.path.insert(0, os.getcwd())
    from tests.chaos import server, trainee
    from tests.chaos.networks import find_network

    find_network(sys.argv[1]).warm_up()
    faulthandler.register(trainee.DUMP)
    gc.freeze()  # a collection would copy all of the interpreter in every fork
    alone = os.listdir("/proc/self/task")
    assert len(alone) == 1, "a process with threads must not fork"
    signal.pthread_sigmask(signal.SIG_BLOCK, [trainee.DROP])  # until a worker listens for it
    os.write(1, READY.encode())
    request = serve()
    if request is None:
        return
    become(request, server.main if request["is_server"] else trainee.main)


def serve() -> dict[str, object] | None:
    """Answer requests; returns in each worker with its request, in the zygote with None."""
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    children: set[int] = set()
    try:
        while True:
            readable, _, _ = select.select([0, wake], [], [])
            if wake in readable:
                os.read(wake, 512)
                bury(children)
            if 0 not in readable:
                continue
            line = read_line()
            if not line:
                return None
            child = os.fork()
            if child == 0:
                children = set()
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(wake)
                os.close(waker)
                request: dict[str, object] = json.loads(line)
                return request
            children.add(child)
            say(child, None)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def read_line() -> bytes:
    """Read one request, without buffering what follows it; empty at the end."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            return b""
        line += piece
    return line


def bury(children: set[int]) -> None:
    """Tell how those that have ended have ended."""
    for child in tuple(children):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            children.discard(child)
            say(child, os.waitstatus_to_exitcode(status))


def say(process: int, code: int | None) -> None:
    """Tell the starter that a worker was started, or how it ended."""
    os.write(1, json.dumps([process, code]).encode() + b"\n")


def become(request: dict[str, object], work: Callable[[], None]) -> None:
    """Turn this fork into the worker that was asked for, and do its work."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    log = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)
    environment = request["environment"]
    assert isinstance(environment, dict)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(request["directory"]))
    work()


if __name__ == "__main__":
    main()
