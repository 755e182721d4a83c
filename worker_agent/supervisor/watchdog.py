"""`Watchdog`: detects that a training process has stopped advancing."""

from __future__ import annotations

from collections import deque
from itertools import repeat
from statistics import median

from worker_agent.heartbeat import HeartbeatReading, TrainingPhase

STEP_TIMES_KEPT = 101  # iterations whose step time counts
MEDIAN_FACTOR = 10
LONGEST_GAP_FACTOR = 3
BUSY_FACTOR = 6  # a long evaluation computes all the time; what hangs seldom does
BUSY_SHARE = 0.1  # of the time, to count as computing on a crowded computer too
WAITING_FACTOR = (
    2  # who waits for a worker that is stuck has to be left alone until that one was ended
)


class Watchdog:
    """Judges one process by how its iteration counter moves (RELIABILITY, M12).

    It is stuck once the counter has stood for longer than ten median step times, three times the
    longest pause there was (an evaluation that was long once may be long again), and the patience.
    Who has computed meanwhile has six times as long, who waits for other workers inside
    an iteration twice; who waits for a generation,
    has not finished an iteration yet, or never speaks is not stuck.

    Args:
        patience: Seconds without an iteration that are always allowed.
        now: The moment it starts to look, on the clock of ``look``.
    """

    def __init__(self, patience: float, now: float) -> None:
        self._patience = patience
        self._step_times: deque[float] = deque(maxlen=STEP_TIMES_KEPT)
        self._longest = 0.0
        self._before = HeartbeatReading()
        self._waits = 0
        self._cpu_time = 0.0
        self._since = now

    def look(self, pulse: HeartbeatReading, now: float, cpu_time: float = 0.0) -> float | None:
        """Return for how many seconds the process has been stuck; None while all is well.

        Args:
            pulse: What the process says.
            now: The moment.
            cpu_time: Seconds it has computed since it was started.
        """
        before, self._before = self._before, pulse
        if pulse.phase is not TrainingPhase.TRAINING or before.phase is not TrainingPhase.TRAINING:
            self._since, self._waits, self._cpu_time = now, pulse.waits, cpu_time
            return None
        if pulse.iteration != before.iteration:
            self._advance(abs(pulse.iteration - before.iteration), now)
            self._waits, self._cpu_time = pulse.waits, cpu_time
            return None
        stood = now - self._since
        factor = WAITING_FACTOR if pulse.waits != self._waits else 1
        if cpu_time - self._cpu_time > BUSY_SHARE * stood:
            factor = BUSY_FACTOR
        return stood if self._step_times and stood > factor * self._limit() else None

    def _advance(self, iterations: int, now: float) -> None:
        took, self._since = now - self._since, now
        self._step_times.extend(repeat(took / iterations, min(iterations, STEP_TIMES_KEPT)))
        self._longest = max(self._longest, took)

    def _limit(self) -> float:
        return max(
            self._patience,
            MEDIAN_FACTOR * median(self._step_times),
            LONGEST_GAP_FACTOR * self._longest,
        )
