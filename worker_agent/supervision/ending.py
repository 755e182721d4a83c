"""Ending: how one run of the training command ended, and what was seen of the reason."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import assert_never

from scavenger.protocol import Exit

NOT_STARTED = 127  # what a shell answers for a command it cannot run
LONGEST_QUOTE = 200
SIGN_OF_STACKS = "(most recent call first)"
SIGNS_OF_NO_MEMORY = (
    "memoryerror",
    "out of memory",
    "outofmemory",
    "bad_alloc",
    "t allocate memory",  # "can't" by PyTorch, "cannot" by the C library
    "cannot allocate memory",
)


@dataclass(frozen=True, slots=True)
class ByItself:
    """The command ended and nobody else had a hand in it."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The command could not be started."""


@dataclass(frozen=True, slots=True)
class AfterTraining:
    """The command ended after its session had closed: training itself was done."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The kernel killed a process of this machine because memory ran out."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """Training had stopped advancing, and the supervisor killed it.

    Attributes:
        seconds: For how long.
        iteration: After which iteration.
    """

    seconds: float
    iteration: int


@dataclass(frozen=True, slots=True)
class Drained:
    """The machine was told to end.

    Attributes:
        seconds: What the command took to end, or was given.
        was_killed: Whether it did not end by itself in that time.
    """

    seconds: float
    was_killed: bool


Cause = ByItself | NotStarted | AfterTraining | OutOfMemory | Stalled | Drained


@dataclass(frozen=True, slots=True)
class Ending:
    """How one run of the training command ended.

    Attributes:
        code: Exit code; negative for a signal, as in ``subprocess``.
        tail: The last lines it printed.
        cause: Why it ended.
    """

    code: int
    tail: str
    cause: Cause

    @property
    def deserves_another_try(self) -> bool:
        """Whether the same command may fare better: not after an error of its own."""
        match self.cause:
            case ByItself():
                return self.code < 0
            case OutOfMemory() | Stalled():
                return True
            case NotStarted() | AfterTraining() | Drained():
                return False
            case _:
                assert_never(self.cause)

    @property
    def remark(self) -> str:
        """What is known beyond the exit code, in one sentence; empty when the code says all."""
        match self.cause:
            case ByItself():
                return no_memory(self.tail) if self.code else ""
            case NotStarted():
                return ""
            case AfterTraining():
                return "" if self.code == 0 else "training was done by then"
            case OutOfMemory():
                return "out of memory: the kernel ended a process of this machine"
            case Stalled(seconds, iteration):
                has_dump = SIGN_OF_STACKS in self.tail
                stacks = "its stacks are in the last lines" if has_dump else "it showed no stacks"
                why = f"no progress for {seconds:.0f} s after iteration {iteration}"
                return f"{why}; killed by the supervisor, {stacks}"
            case Drained(seconds, was_killed):
                took = f"the command ended {seconds:.1f} s later"
                still = f"the command still ran {seconds:.0f} s later and was killed"
                return f"the machine was told to end; {still if was_killed else took}"
            case _:
                assert_never(self.cause)

    def told_by(self, worker: str, *, restarts: bool = False) -> Exit:
        """Return the message for the controller.

        What a drained command makes of the request is no failure of the script's: it counts as
        ended by the signal, whatever its code.
        """
        code = -signal.SIGTERM if isinstance(self.cause, Drained) else self.code
        return Exit(worker, code, self.tail, self.remark, restarts)


def no_memory(tail: str) -> str:
    r"""Return what the last lines say of missing memory, or nothing.

    >>> no_memory("step 3\nRuntimeError: CUDA out of memory.\n")
    'probably out of memory: RuntimeError: CUDA out of memory.'
    """
    for line in reversed(tail.splitlines()):
        if any(sign in line.lower() for sign in SIGNS_OF_NO_MEMORY):
            return f"probably out of memory: {line.strip()[:LONGEST_QUOTE]}"
    return ""
