"""Machines that run scripts find their first rank, in every generation at another port."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from worker_agent.run import meeting
from worker_agent.run.meeting import Meeting, find


@pytest.fixture
def first() -> Iterator[Meeting]:
    made = Meeting("127.0.0.1")
    yield made
    made.close()


def never() -> bool:
    return False


def test_the_others_wait_until_the_first_machine_begins(first: Meeting) -> None:
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(find, first.address, 2, never) for _ in range(3)]
        before = first.choose(1)
        assert not any(other.done() for other in others)
        port = first.choose(2)
        assert [other.result(10) for other in others] == [port] * 3
    assert port != before


def test_no_generation_gets_the_port_of_the_one_before(first: Meeting) -> None:
    before = first.choose(1)
    for generation in range(2, 40_000):
        port = first.choose(generation)
        assert port != before
        before = port


def test_pytorch_may_listen_at_the_port_that_is_kept(first: Meeting) -> None:
    port = first.choose(1)
    with socket.socket() as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("", port))
        store.listen()


def test_nobody_waits_for_a_generation_that_is_superseded(first: Meeting) -> None:
    answers = iter([False, False, True])
    assert find(first.address, 1, lambda: next(answers)) is None


def test_a_first_machine_that_is_gone_is_given_up(
    first: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "LONGEST_SILENCE", 0.1)
    first.close()
    with pytest.raises(ConnectionError, match=f"{first.address}, does not answer"):
        find(first.address, 1, never)
