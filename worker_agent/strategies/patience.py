"""Patience: waiting for others in slices, so that what will never end is given up by decision.

Gloo has time limits only, and neither abort nor shutdown frees who waits in it. A limit cannot tell
a slow member from a dead one; the controller can, and so can a member that finds another dead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

from torch import Tensor
from torch.distributed import ProcessGroup, Work

T = TypeVar("T")

SLICE = timedelta(seconds=0.2)
SLICE_IS_OVER = "Operation timed out!"
LOOK_EVERY = 0.05


def await_work(work: Work, is_hopeless: Callable[[], bool]) -> None:
    """Wait for a collective until it ends, or until there is no hope that it does.

    Raises:
        RuntimeError: It failed, or was given up.
    """
    while True:
        try:
            work.wait(SLICE)
        except RuntimeError as error:
            if SLICE_IS_OVER not in str(error):
                raise
            if work.is_completed():  # since: in the moment after the slice
                work.wait()
                return
            if is_hopeless():
                raise
        else:
            return


def await_made(
    make: Callable[[], T], is_hopeless: Callable[[], bool], left_behind: list[threading.Thread]
) -> T:
    """Let a thread make something that takes long to fail, as long as there is hope.

    Args:
        make: What to run; it has a time limit of its own.
        is_hopeless: Asked while waiting.
        left_behind: Where a thread is noted that was given up: it must end before the process does,
            for a thread in the midst of C++ would abort the interpreter's end.

    Raises:
        RuntimeError: It failed, or was given up.
    """
    made: Future[T] = Future()

    def fulfil() -> None:
        try:
            made.set_result(make())
        except (RuntimeError, OSError) as error:
            made.set_exception(error)

    thread = threading.Thread(target=fulfil, daemon=True)
    thread.start()
    while True:
        try:
            return made.result(LOOK_EVERY)
        except TimeoutError:
            if is_hopeless():
                left_behind.append(thread)
                raise RuntimeError("a member was lost while the others connected") from None


class PatientGroup:
    """A process group whose collectives are waited for with patience.

    Args:
        group: The group itself.
        is_hopeless: Asked while waiting; True gives the collective up.
    """

    def __init__(self, group: ProcessGroup, is_hopeless: Callable[[], bool]) -> None:
        self.group, self.is_hopeless = group, is_hopeless

    def rank(self) -> int:
        """Return this worker's rank."""
        return self.group.rank()

    def size(self) -> int:
        """Return the number of members."""
        return self.group.size()

    def allgather(self, received: list[list[Tensor]], sent: list[Tensor]) -> PatientWork:
        """Start to gather everybody's tensors."""
        return PatientWork(self.group.allgather(received, sent), self.is_hopeless)

    def broadcast(self, tensors: list[Tensor], options: Any) -> PatientWork:
        """Start to send the tensors of one to all."""
        return PatientWork(self.group.broadcast(tensors, options), self.is_hopeless)


class PatientWork:
    """A collective that was started."""

    def __init__(self, work: Work, is_hopeless: Callable[[], bool]) -> None:
        self.work, self.is_hopeless = work, is_hopeless

    def wait(self) -> None:
        """Wait for its end; raises RuntimeError when it failed or was given up."""
        await_work(self.work, self.is_hopeless)
