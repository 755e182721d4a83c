"""Connections between the processes of one worker, all on one machine: the first one leads.

The leading process alone speaks to the controller and to other workers. It tells the processes
that follow it what to do, in order, and they answer where they are asked.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from multiprocessing import connection
from pathlib import Path
from typing import Any

from worker_agent.errors import ProcessLost

ADDRESS = "commands"
MEETING_POLL = 0.02


class FollowerLinks:
    """The leading process's connections to those that follow it, by their position from 1.

    Args:
        directory: Where the processes of this worker meet; only their user may enter it.
        followers: How many follow.
        secret: What they prove that they belong to the job with.
    """

    def __init__(self, directory: Path, followers: int, secret: str) -> None:
        self.count = followers
        self.links: dict[int, connection.Connection[Any, Any]] = {}
        key = secret.encode() or None
        self.listener = connection.Listener(
            str(directory / ADDRESS), "AF_UNIX", backlog=followers, authkey=key
        )

    def accept(self) -> None:
        """Wait until all have come; the supervisor ends this process if one of them ends."""
        while len(self.links) < self.count:
            link = self.listener.accept()
            self.links[link.recv()] = link
        self.listener.close()

    def send(self, message: object) -> None:
        """Tell all of them; raises ProcessLost."""
        for position in self.links:
            self.send_to(position, message)

    def send_to(self, position: int, message: object) -> None:
        """Tell one of them; raises ProcessLost."""
        try:
            self.links[position].send(message)
        except OSError as error:
            raise lost(position, error) from error

    def receive(self) -> dict[int, Any]:
        """Wait for an answer of each, by position; raises ProcessLost."""
        return {position: self._receive_from(position) for position in sorted(self.links)}

    def close(self, last: object) -> None:
        """Tell those that are still there the last message."""
        for link in self.links.values():
            try:
                link.send(last)
            except OSError:
                continue
            finally:
                link.close()
        self.links = {}

    def _receive_from(self, position: int) -> Any:
        try:
            return self.links[position].recv()
        except (OSError, EOFError) as error:
            raise lost(position, error) from error


class LeaderLink:
    """A following process's connection to the one that leads.

    Args:
        directory: Where the processes of this worker meet.
        position: This process's position, from 1.
        secret: As the leading process has it.
    """

    def __init__(self, directory: Path, position: int, secret: str) -> None:
        self.inbox: deque[Any] = deque()
        self.link = connect(str(directory / ADDRESS), secret)
        self.link.send(position)

    def receive(self) -> Any:
        """Wait for the next message; raises ProcessLost."""
        if self.inbox:
            return self.inbox.popleft()
        try:
            return self.link.recv()
        except (OSError, EOFError) as error:
            raise lost(0, error) from error

    def waiting(self) -> Iterable[Any]:
        """Return the messages that have come and were not received yet; raises ProcessLost."""
        try:
            while self.link.poll():
                self.inbox.append(self.link.recv())
        except (OSError, EOFError) as error:
            raise lost(0, error) from error
        return self.inbox

    def send(self, message: object) -> None:
        """Answer; raises ProcessLost."""
        try:
            self.link.send(message)
        except OSError as error:
            raise lost(0, error) from error

    def close(self) -> None:
        self.link.close()


def connect(address: str, secret: str) -> connection.Connection[Any, Any]:
    """Connect to the leading process, which may start later; the supervisor watches.

    The address exists a moment before the leading process listens to it.
    """
    while True:
        try:
            return connection.Client(address, "AF_UNIX", authkey=secret.encode() or None)
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(MEETING_POLL)


def lost(position: int, error: Exception) -> ProcessLost:
    """Return the error for a process that does not answer any more."""
    return ProcessLost(
        f"process {position} of this worker has ended ({type(error).__name__}); its own output says"
        " why. The worker ends and is started again"
    )
