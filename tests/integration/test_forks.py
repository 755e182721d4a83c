"""A death shows at once although processes live on that the script has forked."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from torch.utils.data import DataLoader, Dataset

from tests.conductor import Conductor
from tests.integration import loading
from worker_agent.training.base import SigtermListener
from worker_agent.transport.connection import connect
from worker_agent.transport.fork_safety import close_in_forks, list_sockets, tcp_connections

ROOT = Path(__file__).parents[2]


def is_alive(process: int) -> bool:
    """Whether a process runs, or is stopped, and does not only wait to be waited for."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    return False


def held_by(process: int) -> set[int]:
    """Return the ports to which a process holds connections."""
    return {
        each.raddr.port for each in psutil.Process(process).net_connections("tcp") if each.raddr
    }


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def test_a_death_shows_at_once_behind_what_the_script_has_forked(
    tmp_path: Path, ending: ExitStack
) -> None:
    script, environment = str(Path(loading.__file__)), {"PYTHONPATH": str(ROOT)}
    with Conductor(tmp_path, [script], environment=environment) as conductor:
        for name in ("w0", "w1"):
            conductor.start(name)
        generation = conductor.order(["w0", "w1"], 24)
        conductor.wait_applied(generation, iterations=5)
        forked = [conductor.rows(name)[0] for name in ("w0", "w1")]
        for row in forked:
            for process in (row["daemon"], *row["loaders"]):
                ending.callback(kill, process)
        # None of them can end by itself, nor close anything.
        for row in forked:
            assert held_by(row["daemon"]) <= {conductor.server.server_port}
        for process in forked[1]["loaders"]:
            os.kill(process, signal.SIGSTOP)
        conductor.processes["w1"].send_signal(signal.SIGKILL)
        conductor.processes["w1"].wait()

        def goes_on() -> bool:
            rows = [row for row in conductor.rows("w0") if row["turn"] == [generation, 1]]
            return len(rows) > 10

        conductor.wait(goes_on)
        assert is_alive(forked[1]["daemon"])
        conductor.wait(lambda: not any(map(is_alive, forked[1]["loaders"])))
        assert is_alive(forked[1]["daemon"])
        assert all(map(is_alive, (forked[0]["daemon"], *forked[0]["loaders"])))


def in_fork(work: Callable[[], object]) -> bool:
    """Return what a forked process finds."""
    process = os.fork()
    if process == 0:
        code = 2
        try:
            code = int(not work())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def is_socket(number: int) -> bool:
    return stat.S_ISSOCK(os.fstat(number).st_mode)


def test_a_fork_gives_up_what_is_ours_and_nothing_else(tmp_path: Path) -> None:
    ours, theirs, gone = socket.socketpair(), socket.socketpair(), socket.socket()
    for one in (*ours, gone):
        close_in_forks(one.fileno())
    number = gone.detach()
    with open(tmp_path / "file", "w") as file:
        os.dup2(file.fileno(), number)  # the number is the script's now

        def sees() -> bool:
            is_kept = all(is_socket(one.fileno()) for one in theirs)
            is_left = os.fstat(number).st_ino == os.fstat(file.fileno()).st_ino
            return is_kept and is_left and not any(is_socket(one.fileno()) for one in ours)

        assert in_fork(lambda: sees() and in_fork(sees))
        assert in_fork(lambda: [one.close() for one in ours])
    assert not os.get_inheritable(ours[0].fileno())
    ours[0].sendall(b"well")
    assert ours[1].recv(4) == b"well"
    assert in_fork(lambda: not is_socket(ours[0].fileno()))
    for one in (*ours, *theirs):
        one.close()
    os.close(number)


def test_a_fork_keeps_no_connection_to_a_parameter_server(ending: ExitStack) -> None:
    listener = ending.enter_context(socket.create_server(("127.0.0.1", 0)))
    mine = ending.enter_context(connect(f"127.0.0.1:{listener.getsockname()[1]}"))
    assert in_fork(lambda: not is_socket(mine.fileno()))
    assert is_socket(mine.fileno())


def test_connections_are_known_by_the_ports_at_their_ends(ending: ExitStack) -> None:
    both = {"family": socket.AF_INET6, "dualstack_ipv6": True}  # one end in each table
    listener = ending.enter_context(socket.create_server(("", 0), **both))
    address = ("127.0.0.1", listener.getsockname()[1])
    client = ending.enter_context(socket.create_connection(address))
    server = ending.enter_context(listener.accept()[0])
    own, other = client.getsockname()[1], server.getsockname()[1]
    found = tcp_connections(list_sockets())
    assert found[own, other][0] == client.fileno()
    assert found[other, own][0] == server.fileno()
    assert listener.fileno() not in [number for number, _ in found.values()]


class DeathSignals(Dataset[int]):
    """What a process that loads data gets when its parent dies."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, _: int) -> int:
        return death_signal()


def death_signal() -> int:
    number = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG
    return number.value


def test_what_loads_data_dies_with_its_script_and_nothing_else_does() -> None:
    def load() -> set[int]:
        return {
            int(number) for batch in DataLoader(DeathSignals(), num_workers=2) for number in batch
        }

    assert load() == {signal.SIGKILL}
    assert in_fork(lambda: death_signal() == 0)
    process = multiprocessing.get_context("fork").Process(
        target=lambda: os._exit(death_signal()), daemon=True
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    found: list[set[int]] = []
    thread = threading.Thread(target=lambda: found.append(load()))  # ends before the process does
    thread.start()
    thread.join()
    assert found == [{0}]


def test_a_fork_ends_when_it_is_terminated(ending: ExitStack) -> None:
    asked: list[bool] = []
    context = multiprocessing.get_context("fork")
    is_up = context.Event()

    def live_on() -> None:
        is_up.set()
        while True:
            signal.pause()

    drain = SigtermListener(lambda: asked.append(True))
    ending.callback(drain.disarm)
    process = context.Process(target=live_on, daemon=True)
    process.start()
    ending.callback(process.kill)
    is_up.wait()
    process.terminate()
    process.join()
    assert process.exitcode == -signal.SIGTERM
    signal.raise_signal(signal.SIGTERM)
    assert asked == [True]
