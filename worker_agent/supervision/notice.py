"""Notice: somebody wants this machine to end, by SIGTERM: its platform, or a person."""

from __future__ import annotations

import sys
import time
from types import FrameType

LOOK_EVERY = 0.05


class Notice:
    """Remembers that the machine was told to end; told twice, it ends at once."""

    def __init__(self) -> None:
        self._is_heard = False

    @property
    def is_heard(self) -> bool:
        """Whether the machine was told to end."""
        return self._is_heard

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Note a SIGTERM; this is its handler.

        Raises:
            SystemExit: It is the second one.
        """
        if self._is_heard:
            sys.exit("supervisor: told to end at once")
        self._is_heard = True

    def sleep(self, seconds: float) -> None:
        """Wait, or return early because the machine was told to end."""
        # A lock or an event here could be held by the very thread the handler interrupts.
        until = time.monotonic() + seconds
        while not self._is_heard and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_EVERY))
