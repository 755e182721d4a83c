"""`Watchdog`: detects that a training process has stopped advancing."""

from __future__ import annotations

from collections import deque
from itertools import repeat
from statistics import median

from worker_agent.heartbeat import HeartbeatReading, TrainingPhase

STEP_TIMES_KEPT = 101  # iterations whose step time counts
MEDIAN_FACTOR = 10
LONGEST_GAP_FACTOR = 3
BUSY_FACTOR = 6  # a long evaluation uses the CPU all the time; a process that hangs seldom does
BUSY_SHARE = 0.1  # of the time, so that a process on a crowded computer counts as busy too
WAITING_FACTOR = 2  # a worker that waits for a stuck one must outlive it


class Watchdog:
    """Decides from the iteration counter of one process whether it is stuck.

    It is stuck once the counter has not moved for longer than ten median step times, three times
    the longest pause so far (an evaluation that was long once may be long again), and the stall
    timeout. A process that has used the CPU meanwhile has six times as long; one that waits for
    other workers inside an iteration, twice. A process that waits for a generation, has not
    finished its first iteration, or has no session is never stuck.

    Args:
        stall_timeout: Seconds without an iteration that are always allowed.
        now: Start of the observation, on the clock of ``look``.
    """

    def __init__(self, stall_timeout: float, now: float) -> None:
        self._stall_timeout = stall_timeout
        self._step_times: deque[float] = deque(maxlen=STEP_TIMES_KEPT)
        self._longest = 0.0
        self._before = HeartbeatReading()
        self._waits = 0
        self._cpu_time = 0.0
        self._since = now

    def look(self, reading: HeartbeatReading, now: float, cpu_time: float = 0.0) -> float | None:
        """Return how many seconds the process has been stuck; None if it is not.

        Args:
            reading: What the process has published.
            now: Seconds on a monotonic clock.
            cpu_time: CPU seconds of the process since its start.
        """
        before, self._before = self._before, reading
        if {before.phase, reading.phase} != {TrainingPhase.TRAINING}:
            self._since, self._waits, self._cpu_time = now, reading.waits, cpu_time
            return None
        if reading.iteration != before.iteration:
            self._advance(abs(reading.iteration - before.iteration), now)
            self._waits, self._cpu_time = reading.waits, cpu_time
            return None
        stood = now - self._since
        factor = WAITING_FACTOR if reading.waits != self._waits else 1
        if cpu_time - self._cpu_time > BUSY_SHARE * stood:
            factor = BUSY_FACTOR
        return stood if self._step_times and stood > factor * self._limit() else None

    def _advance(self, iterations: int, now: float) -> None:
        took, self._since = now - self._since, now
        self._step_times.extend(repeat(took / iterations, min(iterations, STEP_TIMES_KEPT)))
        self._longest = max(self._longest, took)

    def _limit(self) -> float:
        return max(
            self._stall_timeout,
            MEDIAN_FACTOR * median(self._step_times),
            LONGEST_GAP_FACTOR * self._longest,
        )
