"""`SpareTasks`: lets processes of TensorFlow reach workers that come after they have started.

Their cluster is fixed at their start. So they are told tasks at addresses of their own machine, and
this forwards what comes there to the worker that has got that task. A task has the same address on
each machine: where a coordinator schedules the steps, it tells the servers what it was told itself.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress

log = logging.getLogger(__name__)

FIRST_PORT = 20_000
FORWARDED_BYTES = 1 << 18
CONNECTING_TIMEOUT = 5.0


class SpareTasks:
    """Forwards connections for tasks that had no worker when the server started.

    Args:
        name: What all machines call the cluster; no other on this computer is called so.
        indexes: The tasks.

    Attributes:
        addresses: Where processes on this machine reach each task, in their order.
        workers: ``host:port`` of the worker of a task, once there is one.
    """

    def __init__(self, name: str, indexes: Iterable[int]) -> None:
        self.workers: Mapping[int, str] = {}
        host = loopback_of(name)
        # Two machines of a job may be one computer; either of them forwards for both.
        self.listeners = {
            index: socket.create_server((host, FIRST_PORT + index), reuse_port=True)
            for index in indexes
        }
        self.addresses = [f"{host}:{FIRST_PORT + index}" for index in self.listeners]
        for index, listener in self.listeners.items():
            threading.Thread(target=self._accept, args=(index, listener), daemon=True).start()

    def close(self) -> None:
        """Listen no longer; connections end with the processes that have them."""
        for listener in self.listeners.values():
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # else it listens on while a thread accepts
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


def loopback_of(name: str) -> str:
    """Return an address of this machine that only this name has; nothing outside reaches it.

    >>> loopback_of("job/1")
    '127.207.62.70'
    """
    first, second, third = hashlib.sha256(name.encode()).digest()[:3]
    return f"127.{first}.{second}.{third % 254 + 1}"


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
