"""What a launcher and the script's processes tell each other: variables, files, ports.

Every generation has ports of its own: on those before, processes of the generation before may
still listen. Each machine chooses one when it is about to start the script, publishes it in its
key-value store, and reads those of the others: PyTorch meets at the first one, TensorFlow has to
know all.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from scavenger.protocol import Directive
from worker_agent.rendezvous.store import KeyValueClient, KeyValueServer
from worker_agent.settings import InstrumentationSettings

BOOT_DIRECTORY = Path(__file__).parent / "boot"
# The script's processes must not report for the machine, nor join the job by themselves.
WITHHELD_VARIABLES = (
    "SCAVENGER_JOB",
    "SCAVENGER_TOKEN",
    "SCAVENGER_CONTROLLER",
    "SCAVENGER_JOB_SECRET",
)


@dataclass(frozen=True, slots=True)
class LauncherFiles:
    """Files through which the launcher and the script's processes communicate.

    Attributes:
        rows: Measured iterations, one line each.
        stop_request: Requests a stop once it exists.
        outcome: How training ended, if an exit code cannot tell.
        checkpoints: Directory of the checkpoints.
    """

    rows: Path
    stop_request: Path
    outcome: Path
    checkpoints: Path

    def to_environment(self) -> dict[str, str]:
        """Return them as the variables that the instrumentation reads."""
        return {
            "SCAVENGER_ROWS": str(self.rows),
            "SCAVENGER_WISH": str(self.stop_request),
            "SCAVENGER_ENDED": str(self.outcome),
            "SCAVENGER_CHECKPOINTS": str(self.checkpoints),
        }


def instrumented_environment(
    environment: Mapping[str, str], added: Mapping[str, str]
) -> dict[str, str]:
    """Return an environment whose Python processes are measured."""
    path = environment.get("PYTHONPATH")
    return {
        **environment,
        **added,
        "PYTHONPATH": str(BOOT_DIRECTORY) if not path else f"{BOOT_DIRECTORY}{os.pathsep}{path}",
        "SCAVENGER_ENABLE": "1",
    }


def generation_environment(
    environment: Mapping[str, str],
    directive: Directive,
    rank: int,
    places: Sequence[str],
    job: str,
) -> dict[str, str]:
    """Return the variables of torchrun and TensorFlow for this machine's process, and our own.

    A script reads its place from ``RANK`` and similar variables, ``torchrun`` on every machine
    reads the same from the ``PET_`` variables, and TensorFlow from ``TF_CONFIG``. The first rank
    of PyTorch listens at the first of the places, each worker of TensorFlow at its own.
    """
    # The same on a new machine, so that all ranks restore a checkpoint together or none does.
    restarts = str(directive.generation - 1)
    host, _, port = places[0].rpartition(":")
    task = {"type": "worker", "index": rank}
    workers, batch = directive.config.workers, directive.config.global_batch
    kept = {name: value for name, value in environment.items() if name not in WITHHELD_VARIABLES}
    return {
        **kept,
        **dict.fromkeys(("RANK", "GROUP_RANK", "ROLE_RANK", "PET_NODE_RANK"), str(rank)),
        **dict.fromkeys(
            ("WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "PET_NNODES"), str(workers)
        ),
        **dict.fromkeys(("MASTER_ADDR", "PET_MASTER_ADDR"), host),
        **dict.fromkeys(("MASTER_PORT", "PET_MASTER_PORT"), port),
        "TF_CONFIG": json.dumps({"cluster": {"worker": list(places)}, "task": task}),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": job,
        "TORCHELASTIC_RESTART_COUNT": restarts,
        "SCAVENGER_RESTARTS": restarts,
        "SCAVENGER_GENERATION": str(directive.generation),
        "SCAVENGER_GLOBAL_BATCH": str(batch),
        "SCAVENGER_LOCAL_BATCH": str(batch // workers),
        "SCAVENGER_LEARNING_RATE_FACTOR": repr(directive.learning_rate.factor(batch)),
    }


def fill_command(command: Sequence[str], rank: int, places: Sequence[str]) -> list[str]:
    """Return a command with what scripts for TensorFlow's clusters take as flags filled in.

    Other braces stay as they are.

    >>> fill_command(["train.py", "--hosts={worker_hosts}", "{x}"], 0, ["a:1", "b:2"])
    ['train.py', '--hosts=a:1,b:2', '{x}']
    """
    known = {
        "{worker_hosts}": ",".join(places),
        "{ps_hosts}": "",
        "{job_name}": "worker",
        "{task_index}": str(rank),
    }
    filled = list(command)
    for name, value in known.items():
        filled = [argument.replace(name, value) for argument in filled]
    return filled


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
        kept = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("", 0))
        self._release()
        self._kept = kept
        port = int(kept.getsockname()[1])
        self._store.set(port_key(generation), str(port))
        return port

    def close(self) -> None:
        self._release()
        self._store.close()

    def _release(self) -> None:
        if self._kept is not None:
            self._kept.close()


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
    heard_at = time.monotonic()
    while not is_over():
        with suppress(OSError):
            with closing(KeyValueClient(machine)) as store:
                is_there = store.wait([port_key(generation)], PORT_POLL)
                if is_there and (port := store.read(port_key(generation))) is not None:
                    return int(port)
            heard_at = time.monotonic()
            continue
        if time.monotonic() - heard_at > MAX_MACHINE_SILENCE:
            raise ConnectionError(f"the machine at {machine} does not answer")
        time.sleep(PORT_POLL)
    return None


def port_key(generation: int) -> str:
    """Return the key of a generation's port."""
    return f"port/{generation}"


STOPPED_AT_BOUNDARY = "in order"
LOST_PEERS = "lost the others"
NOT_DISTRIBUTED = "trains alone"
STEPS_BEFORE_VERDICT = 10  # after which a script that has met no other process counts as alone

EXIT_STOPPED = 75  # EX_TEMPFAIL: training stopped cleanly and continues in a new process

PEER_LOSS_SIGNS = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "socket timeout",
    "timed out",
    "nccl",
)


PEER_LOSS_ERRORS = {
    *("DistBackendError", "DistNetworkError"),  # of PyTorch
    *("UnavailableError", "AbortedError", "DeadlineExceededError"),  # of TensorFlow
}


def write_outcome(settings: InstrumentationSettings, outcome: str) -> None:
    """Tell the launcher how training ended, which an exit code cannot."""
    if settings.outcome is not None:
        Path(settings.outcome).write_text(outcome)


def stop_process(settings: InstrumentationSettings) -> NoReturn:
    """End this process at once: the script would handle an exception as a failure."""
    write_outcome(settings, STOPPED_AT_BOUNDARY)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0 if settings.is_under_torchrun else EXIT_STOPPED)


def is_peer_loss(error: BaseException) -> bool:
    """Whether an exception of the script means that another process of its job disappeared.

    >>> is_peer_loss(RuntimeError("[...] Connection closed by peer [127.0.0.1]:123"))
    True
    """
    text = str(error).lower()
    is_torch = isinstance(error, RuntimeError) and any(sign in text for sign in PEER_LOSS_SIGNS)
    return is_torch or type(error).__name__ in PEER_LOSS_ERRORS
