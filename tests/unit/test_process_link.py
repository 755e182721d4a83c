"""Processes of a worker meet at a socket, in any order."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker_agent.transport import process_link
from worker_agent.transport.process_link import ADDRESS, FollowerLinks, LeaderLink

SECRET = "a job's"


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="scavenger-") as made:  # a socket's path is short
        yield Path(made)


def test_a_follower_waits_while_the_address_exists_and_nothing_listens_there(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener's address exists before it listens."""
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(place / ADDRESS))
    leading: list[FollowerLinks] = []

    def lead() -> None:
        leading[0].accept()
        leading[0].send("begin")

    thread = threading.Thread(target=lead)

    def listen_meanwhile(_: float) -> None:
        """The first wait shows that the follower was refused."""
        if not leading:
            bound.close()
            (place / ADDRESS).unlink()
            leading.append(FollowerLinks(place, 1, SECRET))
            thread.start()

    monkeypatch.setattr(process_link.time, "sleep", listen_meanwhile)
    follower = LeaderLink(place, 1, SECRET)
    assert follower.receive() == "begin"
    thread.join()
    leading[0].close("end")
    assert follower.receive() == "end"
    follower.close()
