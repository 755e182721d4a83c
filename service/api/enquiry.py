"""Enquiry: a question to the database that may be slow or fail, asked once for all who wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Enquiry(Generic[T]):
    """Asks on a thread of its own, one at a time, and keeps the answer for a while.

    Args:
        ask: Finds the answer.
        kept: Seconds for which an answer is good.
        clock: Tells seconds.
    """

    def __init__(
        self, ask: Callable[[], T], kept: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._kept, self._clock = ask, kept, clock
        self._turn = threading.Lock()
        self._asked: Future[T] | None = None
        self._asked_at = 0.0

    def answer(self, patience: float) -> T:
        """Return what was found, or raise what went wrong.

        Raises:
            TimeoutError: There is no answer yet; the question stays asked.
        """
        with self._turn:
            if self._asked is None or self._is_old(self._asked):
                self._asked, self._asked_at = Future(), self._clock()
                threading.Thread(target=self._find, args=(self._asked,), daemon=True).start()
            asked = self._asked
        return asked.result(patience)

    def _is_old(self, asked: Future[T]) -> bool:
        return asked.done() and self._clock() - self._asked_at >= self._kept

    def _find(self, asked: Future[T]) -> None:
        try:
            asked.set_result(self._ask())
        except Exception as error:  # noqa: BLE001, handed on to whoever asked
            asked.set_exception(error)
