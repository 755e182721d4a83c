"""Rate limits: one token bucket per sender."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MAX_BUCKETS = 10_000


@dataclass(frozen=True, slots=True)
class RateLimit:
    """How many requests one sender may send.

    Attributes:
        per_second: Requests per second in the long run.
        burst: Requests at once, after a silence.
    """

    per_second: float
    burst: float


USER_LIMIT, MACHINE_LIMIT = RateLimit(50, 500), RateLimit(200, 2000)
# Counted by address, so that a search for tokens is slow and locks out no token that is good.
STRANGER_LIMIT = RateLimit(5, 100)


class RateLimiter:
    """Counts requests by sender.

    Args:
        clock: Seconds since any moment.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: OrderedDict[tuple[RateLimit, str], tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait(self, limit: RateLimit, sender: str) -> float:
        """Count a request; returns the seconds after which to send it again, 0 if it may go on.

        Beyond ``MAX_BUCKETS`` senders, those silent for longest begin with a full bucket again:
        memory stays bounded, and a flood of addresses cannot exhaust it.
        """
        with self._lock:
            now = self._clock()
            left, since = self._buckets.pop((limit, sender), (limit.burst, now))
            left = min(limit.burst, left + (now - since) * limit.per_second)
            allowed = left >= 1
            self._buckets[limit, sender] = (left - 1 if allowed else left, now)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
            return 0.0 if allowed else (1 - left) / limit.per_second
