"""Door: how a controller that is not well receives those who speak to it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.chaos.script import Kind
from tests.conductor import Unavailable


class Door:
    """Open, or shut in one of four ways.

    Attributes:
        outage: How it is shut; None while it is open.
    """

    def __init__(self) -> None:
        self.outage: Kind | None = None
        self.news = threading.Condition()

    def __call__(self, answer: Callable[[], bytes]) -> bytes:
        """Let one request in, or not; raises what makes the server behave so."""
        outage = self.outage
        if outage is Kind.REFUSE:
            raise ConnectionAbortedError
        if outage is Kind.ERROR:
            raise Unavailable
        if outage is Kind.MUTE:
            with self.news:
                self.news.wait_for(lambda: self.outage is not Kind.MUTE)
            raise ConnectionAbortedError
        content = answer()
        if outage is Kind.FORGET:
            raise ConnectionAbortedError
        return content

    def shut(self, outage: Kind | None) -> None:
        """Shut it in this way, or open it again."""
        with self.news:
            self.outage = outage
            self.news.notify_all()
