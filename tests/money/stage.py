"""Stage: between any two steps of a tick something else may happen, or the controller dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, event


class Crashed(BaseException):
    """The controller was killed here; no code catches that."""


class Stage:
    """Counts the steps of a tick, and lets one thing happen at one of them.

    A step is a call to the cloud, before it and after it, and a transaction, before it and, where
    only a crash can happen since rows are held, before its commit.
    """

    def __init__(self, engine: Engine) -> None:
        self._left = 0
        self._happens: Callable[[], None] | None = None
        event.listen(engine, "begin", lambda _: self.step())
        event.listen(engine, "commit", lambda _: self.step(holds_rows=True))

    @contextmanager
    def interrupted(self, step: int, happens: Callable[[], None]) -> Iterator[None]:
        """Let something happen at one step of what is done meanwhile."""
        self._left, self._happens = step, happens
        try:
            yield
        except Crashed:
            pass
        finally:
            self._happens = None

    def step(self, *, holds_rows: bool = False) -> None:
        """Let happen what is to happen here, once."""
        happens = self._happens
        if happens is None or (holds_rows and happens is not crash):
            return
        self._left -= 1
        if self._left <= 0:
            self._happens = None
            happens()


def crash() -> None:
    """Kill the controller."""
    raise Crashed
