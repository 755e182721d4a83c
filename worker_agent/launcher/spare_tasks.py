"""`SpareTasks`: lets a server of TensorFlow reach workers that come after it has started.

Its cluster is fixed at its start. So it is told more workers than there are, each at a port of its
own machine, and this forwards what comes there to the worker that has got that task.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"  # only the server on this machine comes here
FORWARDED_BYTES = 1 << 18
CONNECTING_TIMEOUT = 5.0


class SpareTasks:
    """Forwards connections for tasks that had no worker when the server started.

    Args:
        indexes: The tasks.

    Attributes:
        addresses: Where the server reaches each task, in their order.
        workers: ``host:port`` of the worker of a task, once there is one.
    """

    def __init__(self, indexes: Iterable[int]) -> None:
        self.workers: Mapping[int, str] = {}
        self.listeners = {index: socket.create_server((LOOPBACK, 0)) for index in indexes}
        self.addresses = [
            f"{LOOPBACK}:{listener.getsockname()[1]}" for listener in self.listeners.values()
        ]
        for index, listener in self.listeners.items():
            threading.Thread(target=self._accept, args=(index, listener), daemon=True).start()

    def close(self) -> None:
        """Listen no longer; connections end with the processes that have them."""
        for listener in self.listeners.values():
            listener.close()

    def _accept(self, index: int, listener: socket.socket) -> None:
        while True:
            try:
                ours, _ = listener.accept()
            except OSError:
                return  # closed
            try:
                worker = self.workers[index]
                host, _, port = worker.rpartition(":")
                theirs = socket.create_connection((host, int(port)), CONNECTING_TIMEOUT)
            except (KeyError, OSError) as error:
                # The server tries again.
                log.debug("task %d is not there yet: %s", index, error)
                ours.close()
                continue
            for each in (ours, theirs):
                each.settimeout(None)
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=forward, args=pair, daemon=True).start()


def forward(source: socket.socket, target: socket.socket) -> None:
    """Send on what comes, until one of the two ends."""
    room = memoryview(bytearray(FORWARDED_BYTES))
    with suppress(OSError):
        while length := source.recv_into(room):
            target.sendall(room[:length])
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
    source.close()
