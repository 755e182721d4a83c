"""Hooks: where a test learns that a machine begins and that its run ends.

Real processes can stand behind machines so. The cloud starts no threads: what ended by itself is
told at the next request, or at the next ``FakeCloud.settle``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.fakecloud.machine import Machine

Hook = Callable[[Machine], None]


@dataclass(slots=True, eq=False)
class Hooks:
    """Tells of each machine once that it began, and afterwards once that its run ended.

    Both are called outside the cloud's lock, one at a time, so a hook may ask the cloud.
    """

    began: Hook
    ended: Hook
    _running: dict[str, Machine] = field(default_factory=dict)
    _newest: int = 0
    _due: deque[tuple[Hook, Machine]] = field(default_factory=deque)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def note(self, machines: Iterable[Machine], now: float) -> None:
        """Write down what is to be told of the fleet; the cloud's lock is held."""
        for machine in machines:
            if machine.number > self._newest:
                self._newest = machine.number
                self._running[machine.id] = machine
                self._due.append((self.began, machine))
        for machine in tuple(self._running.values()):
            if machine.ends_at <= now:
                del self._running[machine.id]
                self._due.append((self.ended, machine))

    def tell(self) -> None:
        """Call what is due; if another thread does so already, it goes on with these."""
        while self._due:
            if not self._turn.acquire(blocking=False):
                return
            try:
                while self._due:
                    hook, machine = self._due.popleft()
                    hook(machine)
            finally:
                self._turn.release()
