"""Turn: lets a worker's iterations pass in rounds that the benchmark starts, and times them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import SupportsFloat


@dataclass(frozen=True, slots=True)
class Round:
    """What one worker used for one round.

    Attributes:
        cpu_time: CPU seconds of the whole process: every thread, user and system.
        loss: Loss of the last iteration on this worker's samples.
    """

    cpu_time: float
    loss: float


class Turn:
    """A worker's turns, one after the other; between them it is blocked."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.left = 0
        self.began_at: float | None = None
        self.loss: SupportsFloat = 0.0

    def goes_on(self) -> bool:
        """Wait for the turn if it is over; False when there will be no other."""
        if self.left == 0:
            self._pause()
        self.left -= 1
        return self.left >= 0

    def _pause(self) -> None:
        if self.began_at is not None:
            cpu_time = time.process_time() - self.began_at
            self.connection.send(Round(cpu_time, float(self.loss)))
        self.left = self.connection.recv()
        self.began_at = time.process_time()
