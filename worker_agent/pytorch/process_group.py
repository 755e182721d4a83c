"""Process groups whose collectives can be abandoned, and the store through which they connect.

Gloo only has time limits, and neither abort nor shutdown frees a thread that waits in it. A
limit cannot tell a slow member from a dead one; the controller can, and so can a member that
finds another dead. So waiting is sliced, and after each slice a decision is made whether to go
on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroup, Work

from worker_agent.rendezvous.store import KeyValueClient

T = TypeVar("T")

WORK_SLICE = timedelta(seconds=0.2)
SLICE_TIMEOUT_MESSAGE = "Operation timed out!"
CONNECT_POLL = 0.05


def await_work(work: Work, is_hopeless: Callable[[], bool]) -> None:
    """Wait for a collective until it ends, or until there is no hope that it does.

    Raises:
        RuntimeError: It failed, or was given up.
    """
    while True:
        try:
            work.wait(WORK_SLICE)
        except RuntimeError as error:
            if SLICE_TIMEOUT_MESSAGE not in str(error):
                raise
            if work.is_completed():  # since: in the moment after the slice
                work.wait()
                return
            if is_hopeless():
                raise
        else:
            return


def run_abandonable(
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
            return made.result(CONNECT_POLL)
        except TimeoutError:
            if is_hopeless():
                left_behind.append(thread)
                raise RuntimeError("a member was lost while the others connected") from None


class AbortableGroup:
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

    def allgather(self, received: list[list[Tensor]], sent: list[Tensor]) -> AbortableWork:
        """Start to gather everybody's tensors."""
        return AbortableWork(self.group.allgather(received, sent), self.is_hopeless)

    def broadcast(self, tensors: list[Tensor], options: Any) -> AbortableWork:
        """Start to send the tensors of one to all."""
        return AbortableWork(self.group.broadcast(tensors, options), self.is_hopeless)


class AbortableWork:
    """A collective that was started."""

    def __init__(self, work: Work, is_hopeless: Callable[[], bool]) -> None:
        self.work, self.is_hopeless = work, is_hopeless

    def wait(self) -> None:
        """Wait for its end; raises RuntimeError when it failed or was given up."""
        await_work(self.work, self.is_hopeless)


BYTE_ENCODING = "latin-1"  # a character for each byte


class TorchStore(Store):
    """What a process group needs of a store; it is used while the group connects only.

    Args:
        address: Address of the board.
        patience: Seconds to wait for a key another member has to write.
    """

    def __init__(self, address: str, patience: float) -> None:
        super().__init__()
        self.board = KeyValueClient(address)
        self.patience = patience

    def close(self) -> None:
        """Hang up."""
        self.board.close()

    def set(self, key: str, value: Any) -> None:
        """Write a value."""
        self.board.set(key, value if isinstance(value, str) else bytes(value).decode(BYTE_ENCODING))

    def get(self, key: str) -> bytes:
        """Wait for a value and return it; raises RuntimeError when it does not come."""
        self.wait([key], timedelta(seconds=self.patience))
        return (self.board.read(key) or "").encode(BYTE_ENCODING)

    def add(self, key: str, amount: int) -> int:
        """Add to a number; returns the sum."""
        return self.board.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return self.board.wait(keys, 0.0)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for keys; raises RuntimeError when they do not come."""
        patience = self.patience if timeout is None else timeout.total_seconds()
        if not self.board.wait(keys, patience):
            raise RuntimeError(f"another member did not come in {patience:.0f} s: {keys}")
