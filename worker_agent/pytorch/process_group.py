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
from torch.distributed import ProcessGroup, ProcessGroupGloo, Work

from worker_agent.rendezvous.store import KeyValueClient

_T = TypeVar("_T")

WORK_SLICE = timedelta(seconds=0.2)
SLICE_TIMEOUT_MESSAGE = "Operation timed out!"
CONNECT_POLL = 0.05
# All members have arrived, but one may still die while they connect.
GROUP_CONNECT_TIMEOUT = timedelta(seconds=5)
# Never reached: waiting is sliced, and abandoned by decision.
COLLECTIVE_TIMEOUT = timedelta(days=1)


def connect_group(store: Store, rank: int, workers: int, host: str) -> ProcessGroup:
    """Connect to the other members of a generation, which connect at the same time.

    Raises:
        RuntimeError: One of them did not connect in time.
    """
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=host)]
    options._timeout = GROUP_CONNECT_TIMEOUT
    group = gloo(store, rank, workers, options)
    group._set_default_timeout(COLLECTIVE_TIMEOUT)
    formed: ProcessGroup = group
    return formed


def await_work(work: Work, should_abort: Callable[[], bool]) -> None:
    """Wait until a collective ends, or ``should_abort`` returns True.

    Raises:
        RuntimeError: It failed, or was abandoned.
    """
    while True:
        try:
            work.wait(WORK_SLICE)
        except RuntimeError as error:
            if SLICE_TIMEOUT_MESSAGE not in str(error):
                raise
            if work.is_completed():  # in the moment after the slice
                work.wait()
                return
            if should_abort():
                raise
        else:
            return


def run_abortable(
    make: Callable[[], _T], should_abort: Callable[[], bool], left_behind: list[threading.Thread]
) -> _T:
    """Run a function on a thread, and abandon it when ``should_abort`` returns True.

    Args:
        make: The function; it has a time limit of its own.
        should_abort: Called while waiting.
        left_behind: Collects abandoned threads: they must end before the process does, because a
            thread inside C++ would abort the interpreter at its exit.

    Raises:
        RuntimeError: It failed, or was abandoned.
    """
    made: Future[_T] = Future()

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
            if should_abort():
                left_behind.append(thread)
                why = "a member was lost or a newer generation replaces this one"
                raise RuntimeError(f"connecting was abandoned: {why}") from None


class AbortableGroup:
    """A process group whose collectives can be abandoned.

    Args:
        group: The group itself.
        should_abort: Called while waiting; True abandons the collective.
    """

    def __init__(self, group: ProcessGroup, should_abort: Callable[[], bool]) -> None:
        self.group, self.should_abort = group, should_abort

    def rank(self) -> int:
        return self.group.rank()

    def size(self) -> int:
        return self.group.size()

    def allgather(self, received: list[list[Tensor]], sent: list[Tensor]) -> AbortableWork:
        return AbortableWork(self.group.allgather(received, sent), self.should_abort)

    def broadcast(self, tensors: list[Tensor], options: Any) -> AbortableWork:
        return AbortableWork(self.group.broadcast(tensors, options), self.should_abort)


class AbortableWork:
    """A collective that was started."""

    def __init__(self, work: Work, should_abort: Callable[[], bool]) -> None:
        self.work, self.should_abort = work, should_abort

    def wait(self) -> None:
        """Wait for its end; raises RuntimeError if it failed or was abandoned."""
        await_work(self.work, self.should_abort)


BYTE_ENCODING = "latin-1"  # a character for each byte


class TorchStore(Store):
    """A ``torch.distributed`` store over a worker's store, used while a group connects.

    Args:
        address: Address of the worker's store.
        timeout: Seconds to wait for a key of another member.
    """

    def __init__(self, address: str, timeout: float) -> None:
        super().__init__()
        self.client = KeyValueClient(address)
        self._timeout = timeout

    def close(self) -> None:
        self.client.close()

    def set(self, key: str, value: Any) -> None:
        self.client.set(
            key, value if isinstance(value, str) else bytes(value).decode(BYTE_ENCODING)
        )

    def get(self, key: str) -> bytes:
        """Wait for a value and return it; raises RuntimeError if it does not come."""
        self.wait([key], timedelta(seconds=self._timeout))
        return (self.client.read(key) or "").encode(BYTE_ENCODING)

    def add(self, key: str, amount: int) -> int:
        return self.client.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        return self.client.wait(keys, 0.0)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for keys; raises RuntimeError if they do not come."""
        seconds = self._timeout if timeout is None else timeout.total_seconds()
        if not self.client.wait(keys, seconds):
            raise RuntimeError(f"no member has set these keys within {seconds:.0f} s: {keys}")
