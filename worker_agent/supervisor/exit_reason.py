"""`RunResult`: how one run of the training command ended, and the observed reason."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import assert_never

from scavenger.layout import Layout
from scavenger.protocol import CommandExit

EXIT_NOT_STARTED = 127  # what a shell answers for a command it cannot run
SIGNAL_CODE_BASE = 128  # a shell adds it to the number of the signal that ended a command
MAX_QUOTE = 200
STACK_DUMP_SIGN = "(most recent call first)"
OUT_OF_MEMORY_SIGNS = (
    "memoryerror",
    "out of memory",
    "outofmemory",
    "bad_alloc",
    "t allocate memory",  # "can't" by PyTorch, "cannot" by the C library
)


@dataclass(frozen=True, slots=True)
class ExitedByItself:
    """The command ended by itself: no other process of the machine ended it."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The command could not be started."""


@dataclass(frozen=True, slots=True)
class Unprepared:
    """The command was not started, because its code or its setup failed on this machine.

    Attributes:
        why: What failed, in one sentence.
    """

    why: str


@dataclass(frozen=True, slots=True)
class ExitedAfterTraining:
    """The command ended after its session had closed, so training was complete."""


@dataclass(frozen=True, slots=True)
class ChangesLayout:
    """The command ended because its processes are to share the model in another way.

    Attributes:
        layout: The other way.
    """

    layout: Layout


@dataclass(frozen=True, slots=True)
class KilledForMemory:
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
    """The machine was told to shut down.

    Attributes:
        seconds: Time until the command had ended or was killed.
        was_killed: Whether it was killed.
    """

    seconds: float
    was_killed: bool


ExitReason = (
    ExitedByItself
    | NotStarted
    | Unprepared
    | ExitedAfterTraining
    | ChangesLayout
    | KilledForMemory
    | Stalled
    | Drained
)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How one run of the training command ended.

    Attributes:
        code: Exit code; negative for a signal, as in ``subprocess``.
        tail: The last lines it printed.
        reason: Why it ended.
    """

    code: int
    tail: str
    reason: ExitReason

    @property
    def is_retryable(self) -> bool:
        """Whether a restart may help: not after an error of the command itself."""
        match self.reason:
            case ExitedByItself():
                return self.code < 0
            case KilledForMemory() | Stalled() | ChangesLayout():
                return True
            case NotStarted() | Unprepared() | ExitedAfterTraining() | Drained():
                return False
            case _:
                assert_never(self.reason)

    @property
    def is_failure_of_command(self) -> bool:
        """Whether the command failed in its own work, or for want of memory."""
        match self.reason:
            case ExitedByItself():
                return self.code > 0
            case KilledForMemory():
                return True
            case _:
                return False

    @property
    def cause(self) -> str:
        """One sentence about the reason; empty if the exit code says it all."""
        match self.reason:
            case ExitedByItself():
                return quote_out_of_memory(self.tail) if self.code else ""
            case NotStarted():
                return ""
            case ChangesLayout(layout):
                return f"its processes go on with {layout}"
            case Unprepared(why):
                return f"{why}; the command was not started"
            case ExitedAfterTraining():
                return "" if self.code == 0 else "training was done by then"
            case KilledForMemory():
                return "out of memory: the kernel ended a process of this machine"
            case Stalled(seconds, iteration):
                has_dump = STACK_DUMP_SIGN in self.tail
                stacks = "its stacks are in the last lines" if has_dump else "it showed no stacks"
                why = f"no progress for {seconds:.0f} s after iteration {iteration}"
                return f"{why}; killed by the supervisor, {stacks}"
            case Drained(seconds, was_killed):
                took = f"the command ended {seconds:.1f} s later"
                still = f"the command still ran {seconds:.0f} s later and was killed"
                return f"the machine was told to end; {still if was_killed else took}"
            case _:
                assert_never(self.reason)

    def as_failed_setup(self) -> RunResult:
        """Return the result of a machine whose ``run.setup`` ended like this."""
        if isinstance(self.reason, Drained):
            return self
        # A signal counts as an error, too: on another machine the same words would do the same.
        code = self.code if self.code > 0 else SIGNAL_CODE_BASE - self.code
        what = f"run.setup failed: {self.cause}" if self.cause else "run.setup failed"
        return RunResult(code, self.tail, Unprepared(what))

    def to_message(self, worker: str, *, restarts: bool = False) -> CommandExit:
        """Return the message for the controller.

        A drained command has not failed, nor has one that was to go on in another layout, so it
        counts as ended by SIGTERM even if its exit code is another.
        """
        has_left = isinstance(self.reason, Drained | ChangesLayout)
        code = -signal.SIGTERM if has_left else self.code
        return CommandExit(worker, code, self.tail, self.cause, restarts)


def quote_out_of_memory(tail: str) -> str:
    r"""Return the last line that reports missing memory, or an empty string.

    >>> quote_out_of_memory("step 3\nRuntimeError: CUDA out of memory.\n")
    'probably out of memory: RuntimeError: CUDA out of memory.'
    """
    for line in reversed(tail.splitlines()):
        if any(sign in line.lower() for sign in OUT_OF_MEMORY_SIGNS):
            return f"probably out of memory: {line.strip()[:MAX_QUOTE]}"
    return ""
