"""Machines that run scripts find each other, in every generation at other ports."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.builders import directive
from tests.controller_double import LONG
from worker_agent.launcher import places
from worker_agent.launcher.environment import fill_command, generation_environment
from worker_agent.launcher.places import MachinePort, Placement, find_places
from worker_agent.launcher.spare_tasks import SpareTasks


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
    monkeypatch.setattr(places, "MAX_MACHINE_SILENCE", 0.1)
    first.close()
    with pytest.raises(ConnectionError, match=f"at {first.address} does not answer"):
        find_places([first.address], 1, never)


@pytest.mark.parametrize("workers", [1, 3])
def test_each_framework_reads_its_place_as_it_expects_it(workers: int) -> None:
    hosts = [f"10.0.0.{number}:{7000 + number}" for number in range(1, workers + 1)]
    for rank in range(workers):
        placement = Placement(tuple(hosts), rank, rank)
        given = generation_environment({}, directive(workers, 12), placement, "job_1")
        assert (given["RANK"], given["WORLD_SIZE"]) == (str(rank), str(workers))
        assert f"{given['MASTER_ADDR']}:{given['MASTER_PORT']}" == hosts[0]
        assert json.loads(given["TF_CONFIG"]) == {
            "cluster": {"worker": hosts},
            "task": {"type": "worker", "index": rank},
        }


def test_a_server_reads_the_same_cluster_as_its_workers() -> None:
    cluster = {"workers": ("w:1", "w:2"), "servers": ("s:1", "s:2")}
    seen = {}
    for kind, task in (("worker", 1), ("ps", 0)):
        placement = Placement(**cluster, task=task, rank=task, kind=kind)
        seen[kind] = json.loads(
            generation_environment({}, directive(2, 12), placement, "job_1")["TF_CONFIG"]
        )
        command = fill_command(["{job_name}:{task_index} {ps_hosts} {worker_hosts}"], placement)
        assert command == [f"{kind}:{task} s:1,s:2 w:1,w:2"]
    assert seen["worker"]["cluster"] == {"worker": ["w:1", "w:2"], "ps": ["s:1", "s:2"]}
    assert seen["ps"] == {**seen["worker"], "task": {"type": "ps", "index": 0}}


def test_a_coordinator_knows_its_own_place_besides() -> None:
    placement = Placement(("w:1",), 0, 0, servers=("s:1",), kind="chief", coordinator="w:2")
    config = json.loads(generation_environment({}, directive(1, 6), placement, "job")["TF_CONFIG"])
    assert config["cluster"] == {"chief": ["w:2"], "worker": ["w:1"], "ps": ["s:1"]}
    assert config["task"] == {"type": "chief", "index": 0}


def test_a_spare_task_is_reached_once_it_has_a_worker(tmp_path: Path) -> None:
    spare, of_another_machine = (SpareTasks(str(tmp_path), [2, 3]) for _ in range(2))
    assert spare.addresses == of_another_machine.addresses
    of_another_machine.close()
    with socket.create_server(("127.0.0.1", 0)) as worker:
        place = spare.addresses[1].rpartition(":")
        with socket.create_connection((place[0], int(place[2]))) as early:
            assert early.recv(1) == b"", "the task has no worker yet"
        spare.workers = {3: f"127.0.0.1:{worker.getsockname()[1]}"}
        with socket.create_connection((place[0], int(place[2]))) as server:
            there, _ = worker.accept()
            with there:
                server.sendall(b"to the worker")
                assert there.recv(100) == b"to the worker"
                there.sendall(b"and back")
                assert server.recv(100) == b"and back"
            assert server.recv(1) == b"", "the worker has ended the connection"
    spare.close()
