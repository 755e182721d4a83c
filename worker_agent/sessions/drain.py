"""Drain: a request to end, SIGTERM, becomes a wish that is granted at an iteration boundary."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class Drain:
    """Listens for SIGTERM, unless the script does so itself.

    A process that the script forks inherits this; for it SIGTERM still means its end, or who starts
    and terminates it would wait for ever.

    Args:
        is_asked: Called when somebody asks this process to end.
    """

    def __init__(self, is_asked: Callable[[], None]) -> None:
        self.is_asked, self.process = is_asked, os.getpid()
        self.is_armed = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        if self.is_armed:
            signal.signal(signal.SIGTERM, self._hear)

    def disarm(self) -> None:
        """Let SIGTERM end the process again."""
        if self.is_armed:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self.process:
            self.is_asked()
            return
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
