"""Crashline: counts the lines of the controller as they are executed, and kills before one."""

from __future__ import annotations

import os
import signal
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
CONTROLLER = (
    "service/reconciler/*.py",
    "service/state/*.py",
    "service/garbage_collection/*.py",
    "service/clouds/executor.py",
    "service/clouds/inventory.py",
    "service/clouds/labels.py",
    "service/db/*.py",
    "service/ledger.py",
    "service/clouds/provider.py",
)
PROVIDERS = {
    "fake": ("tests/fakecloud/provider.py", "tests/crash/way.py"),
    "aws": ("service/clouds/aws*.py", "service/clouds/boot.py"),
    "google": ("service/clouds/google*.py", "service/clouds/boot.py"),
}
WATCHED: set[str] = set()  # one cloud in each process


Line = tuple[str, int]
Trace = Callable[[FrameType, str, object], Any]


def watch(cloud: str) -> None:
    """Count the lines of the controller and of the provider of a cloud from now on."""
    patterns = (*CONTROLLER, *PROVIDERS[cloud])
    WATCHED.update(str(path) for pattern in patterns for path in ROOT.glob(pattern))


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL before a line.

    Attributes:
        at: Which of all executed lines, counted from 1.
        line: The line that must be; None where it is not known yet.
        effects: After how many effects counting may begin, since it takes time.
        begun: How many lines have begun by then.
    """

    at: int
    line: Line | None = None
    effects: int = 0
    begun: int = 0


@dataclass(frozen=True, slots=True)
class Lines:
    """What one controller executed.

    Attributes:
        lines: File and number of each line, as it was executed.
        effects: How many lines had begun when something happened that outlives the process.
    """

    lines: Sequence[Line]
    effects: Sequence[int]

    def kill(self, at: int) -> Kill:
        """Return the kill before a line."""
        effects = bisect_left(self.effects, at)
        begun = self.effects[effects - 1] if effects else 0
        return Kill(at, self.lines[at - 1], effects, begun)


class Missed(Exception):
    """Another line was executed than when lines were counted."""


class Count:
    """Notes every executed line, and where among them something happened that stays."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.effects: list[int] = []

    def start(self) -> None:
        lines = self.lines

        def local(frame: FrameType, event: str, _: object) -> Any:
            if event == "line":
                lines.append((frame.f_code.co_filename, frame.f_lineno))
            return local

        sys.settrace(watching(local))

    def note(self) -> None:
        """Note an effect."""
        self.effects.append(len(self.lines))


class Executioner:
    """Dies before a line, as suddenly as the kernel can make it."""

    def __init__(self, kill: Kill) -> None:
        self._kill, self._effects_left = kill, kill.effects

    def start(self) -> None:
        if not self._effects_left:
            self._count()

    def note(self) -> None:
        """Note an effect, and begin to count after the right one."""
        self._effects_left -= 1
        if not self._effects_left:
            self._count()

    def _count(self) -> None:
        kill, left = self._kill, self._kill.at - self._kill.begun

        def local(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if event == "line":
                left -= 1
                if not left:
                    found = (frame.f_code.co_filename, frame.f_lineno)
                    if kill.line not in (None, found):
                        sys.settrace(None)
                        raise Missed(f"line {kill.at} was {kill.line}, and is {found} now")
                    os.kill(os.getpid(), signal.SIGKILL)
            return local

        sys.settrace(watching(local))
        frame: FrameType | None = sys._getframe()
        while frame is not None:  # those that are open already
            if frame.f_code.co_filename in WATCHED:
                frame.f_trace = local
            frame = frame.f_back


def watching(local: Trace) -> Trace:
    """Trace the controller's own code and nothing else."""
    return lambda frame, *_: local if frame.f_code.co_filename in WATCHED else None


def executable() -> set[Line]:
    """Return every line of the controller's functions that could be executed."""
    found: set[Line] = set()
    for file in WATCHED:
        todo = [compile(Path(file).read_text(), file, "exec")]
        while todo:
            code = todo.pop()
            todo += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
            if code.co_flags & CO_OPTIMIZED:  # a function's, not a module's or a class's
                lines = {line for _, _, line in code.co_lines() if line is not None}
                found |= {(file, line) for line in lines - {code.co_firstlineno}}
    return found


def short(line: Line) -> str:
    """Write a line as people find it."""
    return f"{Path(line[0]).relative_to(ROOT)}:{line[1]}"
