"""Machines that run scripts find each other, in every generation at other ports."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.builders import directive
from tests.controller_double import LONG
from worker_agent.launcher import environment
from worker_agent.launcher.environment import MachinePort, find_places, generation_environment


@pytest.fixture
def first() -> Iterator[MachinePort]:
    made = MachinePort("127.0.0.1")
    yield made
    made.close()


@pytest.fixture
def second() -> Iterator[MachinePort]:
    made = MachinePort("127.0.0.1")
    yield made
    made.close()


def never() -> bool:
    return False


def test_each_machine_waits_until_all_begin(first: MachinePort, second: MachinePort) -> None:
    machines = [first.address, second.address]
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(find_places, machines, 2, never) for _ in range(2)]
        before = first.choose(1), second.choose(1)
        port = first.choose(2)
        assert not any(each.done() for each in both)
        other = second.choose(2)
        assert [each.result(LONG) for each in both] == [
            [f"127.0.0.1:{port}", f"127.0.0.1:{other}"]
        ] * 2
    assert len({*before, port, other}) == 4


def test_no_generation_gets_the_port_of_the_one_before(first: MachinePort) -> None:
    before = first.choose(1)
    for generation in range(2, 40_000):
        port = first.choose(generation)
        assert port != before
        before = port


def test_a_framework_may_listen_at_the_port_that_is_kept(first: MachinePort) -> None:
    port = first.choose(1)
    with socket.socket() as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("", port))
        store.listen()


def test_no_worker_waits_for_a_generation_that_is_superseded(first: MachinePort) -> None:
    answers = iter([False, False, True])
    assert find_places([first.address], 1, lambda: next(answers)) is None


def test_a_machine_that_is_gone_is_given_up(
    first: MachinePort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "MAX_MACHINE_SILENCE", 0.1)
    first.close()
    with pytest.raises(ConnectionError, match=f"at {first.address} does not answer"):
        find_places([first.address], 1, never)


@pytest.mark.parametrize("workers", [1, 3])
def test_each_framework_reads_its_place_as_it_expects_it(workers: int) -> None:
    places = [f"10.0.0.{number}:{7000 + number}" for number in range(1, workers + 1)]
    for rank in range(workers):
        given = generation_environment({}, directive(workers, 12), rank, places, "job_1")
        assert (given["RANK"], given["WORLD_SIZE"]) == (str(rank), str(workers))
        assert f"{given['MASTER_ADDR']}:{given['MASTER_PORT']}" == places[0]
        assert json.loads(given["TF_CONFIG"]) == {
            "cluster": {"worker": places},
            "task": {"type": "worker", "index": rank},
        }
