"""Rate limits: one token bucket per sender."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MAX_BUCKETS = 10_000


@dataclass(frozen=True, slots=True)
class RateLimit:
    """How often somebody may ask.

    Attributes:
        per_second: Requests per second in the long run.
        burst: Requests at once, after a silence.
    """

    per_second: float
    burst: float


PERSON_LIMIT, MACHINE_LIMIT, STRANGER_LIMIT = (
    RateLimit(50, 500),
    RateLimit(200, 2000),
    RateLimit(5, 100),
)


class RateLimiter:
    """Counts requests, by who sends them.

    Args:
        clock: Seconds since any moment.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: OrderedDict[tuple[RateLimit, str], tuple[float, float]] = OrderedDict()
        self._turn = threading.Lock()

    def wait(self, rate: RateLimit, who: str) -> float:
        """Count a request; returns the seconds after which to send it again, 0 if it may go on.

        Of very many senders, those that were silent longest begin with a full bucket again.
        """
        with self._turn:
            now = self._clock()
            left, since = self._buckets.pop((rate, who), (rate.burst, now))
            left = min(rate.burst, left + (now - since) * rate.per_second)
            allowed = left >= 1
            self._buckets[rate, who] = (left - 1 if allowed else left, now)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
            return 0.0 if allowed else (1 - left) / rate.per_second
