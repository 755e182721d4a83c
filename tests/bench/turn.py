"""Turn: lets a worker's iterations pass in rounds that the benchmark starts, and times them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import SupportsFloat

SEED = 0
WORKERS = 2
GLOBAL_BATCH = 32 * WORKERS


@dataclass(frozen=True, slots=True)
class Round:
    """What one worker used for one round.

    Attributes:
        cpu_time: CPU seconds of the whole process: every thread, user and system.
        loss: Loss of the last iteration on this worker's samples.
        wall_times: Wall seconds of each iteration.
    """

    cpu_time: float
    loss: float
    wall_times: tuple[float, ...]


class Turn:
    """A worker's turns, one after the other; between them it is blocked."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.left = 0
        self.began_at: float | None = None
        self.loss: SupportsFloat = 0.0
        self.moments: list[float] = []

    def goes_on(self) -> bool:
        """Wait for the turn if it is over; False when there will be no other."""
        self.moments.append(time.perf_counter())
        if self.left == 0:
            self._pause()
        self.left -= 1
        return self.left >= 0

    def _pause(self) -> None:
        if self.began_at is not None:
            cpu_time = time.process_time() - self.began_at
            wall_times = tuple(after - before for before, after in pairwise(self.moments))
            self.connection.send(Round(cpu_time, float(self.loss), wall_times))
        self.left = self.connection.recv()
        self.moments = [time.perf_counter()]
        self.began_at = time.process_time()
