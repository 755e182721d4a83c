"""Cursor: hands every position in the data order to one worker, again if that worker dies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from worker_agent.sampler import Share


class Cursor:
    """What has been handed out, to whom, and what has been used.

    Attributes:
        done: Samples whose gradients have been applied.
    """

    def __init__(self, start: int = 0) -> None:
        self.done = start
        self._next = start
        self._returned: deque[Share] = deque()
        self._taken: dict[str, list[Share]] = {}

    def take(self, worker: str, count: int, limit: int) -> Share | None:
        """Hand out at most this many samples below the limit; None when none are left."""
        share = self._again(count) or self._fresh(count, limit)
        if share is not None:
            self._taken.setdefault(worker, []).append(share)
        return share

    def finish(self, worker: str, shares: Iterable[Share]) -> None:
        """Note that a worker's gradients of these samples have been applied."""
        taken = self._taken.get(worker, [])
        for share in shares:
            if share in taken:
                taken.remove(share)
                self.done += share.count

    def give_back(self, worker: str) -> None:
        """Hand out anew what a worker took and did not use: it is gone."""
        self._returned.extend(self._taken.pop(worker, []))

    def is_over(self, limit: int) -> bool:
        """Whether all samples below the limit have been used."""
        return self._next >= limit and not self._returned and not any(self._taken.values())

    def _again(self, count: int) -> Share | None:
        if not self._returned:
            return None
        share = self._returned.popleft()
        if share.count > count:
            self._returned.appendleft(Share(share.start + count, share.count - count))
        return Share(share.start, min(count, share.count))

    def _fresh(self, count: int, limit: int) -> Share | None:
        size = min(count, limit - self._next)
        if size <= 0:
            return None
        self._next += size
        return Share(self._next - size, size)
