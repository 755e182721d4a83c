"""Where the processes of a script are: each machine chooses a port, and tells the others.

Every generation has ports of its own: on those before, processes of the generation before may
still listen. Each machine chooses one when it is about to start the script, publishes it in its
key-value store, and reads those of the others: PyTorch meets at the first one, TensorFlow has to
know all.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Literal

from worker_agent.rendezvous.store import KeyValueClient, KeyValueServer


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the processes of a script's start are, and which of them this machine runs.

    Attributes:
        workers: ``host:port`` of each worker's process, by task index.
        servers: The same of the processes that serve parameters; none without such.
        task: Index of this machine's process among those of its kind.
        rank: Rank of this machine's worker in the generation; of a server its task index.
        kind: What this machine's process is.
        coordinator: ``host:port`` of the process that schedules what the workers do, if there is
            one.
    """

    workers: tuple[str, ...]
    task: int
    rank: int
    servers: tuple[str, ...] = ()
    kind: Literal["worker", "ps", "chief"] = "worker"
    coordinator: str | None = None

    @property
    def cluster(self) -> dict[str, list[str]]:
        """The cluster as TensorFlow writes it."""
        servers = {"ps": list(self.servers)} if self.servers else {}
        chief = {} if self.coordinator is None else {"chief": [self.coordinator]}
        return {**chief, "worker": list(self.workers), **servers}


PORT_POLL = 0.2
MAX_MACHINE_SILENCE = 30.0  # seconds without an answer after which a machine counts as lost


class MachinePort:
    """The port that this machine reserves for its process, and publishes in its store.

    Attributes:
        host: Address at which the other machines reach this one.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self._store = KeyValueServer(host)
        self._kept: socket.socket | None = None

    @property
    def address(self) -> str:
        """``host:port`` of the store."""
        return self._store.address

    def choose(self, generation: int) -> int:
        """Choose the generation's port and publish it.

        The port is bound without listening, so that a framework, which reuses addresses, may
        listen on it. The previous port is released afterwards, or the kernel might assign it again.
        """
        kept = reserve_port(self.host)
        self._release()
        self._kept = kept
        port = int(kept.getsockname()[1])
        self._store.set(port_key(generation), str(port))
        return port

    def publish(self, key: str, value: str) -> None:
        """Tell the other machines something; they read it by `try_read`."""
        self._store.set(key, value)

    def close(self) -> None:
        self._release()
        self._store.close()

    def _release(self) -> None:
        if self._kept is not None:
            self._kept.close()


def reserve_port(host: str) -> socket.socket:
    """Bind a port of this machine without listening, so that a framework may listen on it."""
    kept = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("", 0))
    return kept


def find_places(
    machines: Sequence[str], generation: int, is_over: Callable[[], bool]
) -> list[str] | None:
    """Wait until a generation's machines have chosen their ports; None if it is superseded.

    Args:
        machines: Addresses of their stores.
        generation: The generation that is being formed.
        is_over: Called while waiting; True ends it.

    Returns:
        ``host:port`` of each machine's process.

    Raises:
        ConnectionError: A machine has not answered for MAX_MACHINE_SILENCE.
    """
    places: list[str] = []
    for machine in machines:
        port = find_port(machine, generation, is_over)
        if port is None:
            return None
        places.append(f"{machine.rpartition(':')[0]}:{port}")
    return places


def find_port(machine: str, generation: int, is_over: Callable[[], bool]) -> int | None:
    """Wait for the port that one machine chooses; as `find_places`."""
    port = wait_for(machine, port_key(generation), is_over)
    return None if port is None else int(port)


def wait_for(machine: str, key: str, is_over: Callable[[], bool]) -> str | None:
    """Wait until a machine publishes something; None if that is over.

    Raises:
        ConnectionError: The machine has not answered for MAX_MACHINE_SILENCE.
    """
    heard_at = time.monotonic()
    while not is_over():
        with suppress(OSError):
            if (value := try_read(machine, key, PORT_POLL)) is not None:
                return value
            heard_at = time.monotonic()
            continue
        if time.monotonic() - heard_at > MAX_MACHINE_SILENCE:
            raise ConnectionError(f"the machine at {machine} does not answer")
        time.sleep(PORT_POLL)
    return None


def try_read(machine: str, key: str, timeout: float = 0.0) -> str | None:
    """Return what a machine has published, or publishes within a time; None if nothing.

    Raises:
        OSError: The machine does not answer.
    """
    with closing(KeyValueClient(machine)) as store:
        return store.read(key) if not timeout or store.wait([key], timeout) else None


def read_quietly(machine: str, key: str) -> str | None:
    """Return what a machine has published; None if it has not, or does not answer."""
    with suppress(OSError):
        return try_read(machine, key)
    return None


def port_key(generation: int) -> str:
    """Return the key of a generation's port."""
    return f"port/{generation}"
