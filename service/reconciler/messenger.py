"""Messenger: controllers of one database tell each other at once that there is news.

News is a hint and nothing more: who misses some looks soon anyway.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import psycopg
from sqlalchemy import URL

log = logging.getLogger(__name__)

CHANNEL = "scavenger_news"
PAUSE = 0.5
PATIENCE = "5"


class Messenger:
    """Hears the news of others and spreads one's own, over one connection on one thread.

    Args:
        url: The database; the connection is none of a pool's, as it waits most of the time.
        wake: Called when others have news, or may have had some while nobody listened.
    """

    def __init__(self, url: URL, wake: Callable[[], None]) -> None:
        plain = url.set(drivername="postgresql").update_query_dict({"connect_timeout": PATIENCE})
        self._address = plain.render_as_string(hide_password=False)
        self._wake = wake
        self._stopping = threading.Event()
        self._bell, self._rope = socket.socketpair()
        self._rope.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="messenger")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Hang up and end."""
        self._stopping.set()
        self.spread()
        self._thread.join()
        self._bell.close()
        self._rope.close()

    def spread(self) -> None:
        """Let the others know soon that there is news; what is told at once is told once."""
        with suppress(BlockingIOError):  # it rings so many times already
            self._rope.send(b"!")

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with psycopg.connect(self._address, autocommit=True) as line:
                    self._listen(line)
            except psycopg.Error as error:
                log.info("no news of other controllers for a while: %s", error)
                self._stopping.wait(PAUSE)

    def _listen(self, line: psycopg.Connection) -> None:
        """Pass news on in both directions until the connection breaks or it is enough."""
        line.execute(f"LISTEN {CHANNEL}")
        self._wake()
        with selectors.DefaultSelector() as selector:
            selector.register(line, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while not self._stopping.is_set():
                ready = {key.fileobj for key, _ in selector.select()}
                if self._bell in ready:
                    self._bell.recv(4096)
                    line.execute(f"NOTIFY {CHANNEL}")
                mine = line.info.backend_pid
                if any(news.pid != mine for news in line.notifies(timeout=0)):
                    self._wake()
