"""Machines that run scripts find their first rank, in every generation at another port."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.controller_double import LONG
from worker_agent.launcher import environment
from worker_agent.launcher.environment import MasterPort, find_master_port


@pytest.fixture
def first() -> Iterator[MasterPort]:
    made = MasterPort("127.0.0.1")
    yield made
    made.close()


def never() -> bool:
    return False


def test_the_others_wait_until_the_first_machine_begins(first: MasterPort) -> None:
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(find_master_port, first.address, 2, never) for _ in range(3)]
        before = first.choose(1)
        assert not any(other.done() for other in others)
        port = first.choose(2)
        assert [other.result(LONG) for other in others] == [port] * 3
    assert port != before


def test_no_generation_gets_the_port_of_the_one_before(first: MasterPort) -> None:
    before = first.choose(1)
    for generation in range(2, 40_000):
        port = first.choose(generation)
        assert port != before
        before = port


def test_pytorch_may_listen_at_the_port_that_is_kept(first: MasterPort) -> None:
    port = first.choose(1)
    with socket.socket() as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("", port))
        store.listen()


def test_no_worker_waits_for_a_generation_that_is_superseded(first: MasterPort) -> None:
    answers = iter([False, False, True])
    assert find_master_port(first.address, 1, lambda: next(answers)) is None


def test_a_first_machine_that_is_gone_is_given_up(
    first: MasterPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "MAX_FIRST_RANK_SILENCE", 0.1)
    first.close()
    with pytest.raises(ConnectionError, match=f"{first.address}, does not answer"):
        find_master_port(first.address, 1, never)
