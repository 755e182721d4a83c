"""What a launcher and the script's processes tell each other, by variables and files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from scavenger.protocol import Directive
from worker_agent.launcher.places import Placement
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
        departures: Workers of parameter servers that are not to be waited for.
        gate: Lets a process go on where it makes its strategy, once it exists.
        arrived: Exists once a process has come there.
        joined: Exists once the process of a worker serves, for a coordinator that schedules its
            steps.
        checkpoints: Directory of the checkpoints.
    """

    rows: Path
    stop_request: Path
    outcome: Path
    departures: Path
    gate: Path
    arrived: Path
    joined: Path
    checkpoints: Path

    @classmethod
    def in_directory(cls, directory: Path, checkpoints: Path) -> LauncherFiles:
        """Return the files of one run of a script, in a directory of its own."""
        directory.mkdir(exist_ok=True)
        return cls(
            rows=directory / "rows.jsonl",
            stop_request=directory / "wish",
            outcome=directory / "ended",
            departures=directory / "departures",
            gate=directory / "gate",
            arrived=directory / "arrived",
            joined=directory / "joined",
            checkpoints=checkpoints,
        )

    def to_environment(self) -> dict[str, str]:
        """Return them as the variables that the instrumentation reads."""
        return {
            "SCAVENGER_ROWS": str(self.rows),
            "SCAVENGER_WISH": str(self.stop_request),
            "SCAVENGER_ENDED": str(self.outcome),
            "SCAVENGER_DEPARTURES": str(self.departures),
            "SCAVENGER_GATE": str(self.gate),
            "SCAVENGER_ARRIVED": str(self.arrived),
            "SCAVENGER_JOINED": str(self.joined),
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
    environment: Mapping[str, str], directive: Directive, placement: Placement, job: str
) -> dict[str, str]:
    """Return the variables of torchrun and TensorFlow for this machine's process, and our own.

    A script reads its place from ``RANK`` and similar variables, ``torchrun`` on every machine
    reads the same from the ``PET_`` variables, and TensorFlow from ``TF_CONFIG``. The first rank
    of PyTorch listens at the first of the places, each process of TensorFlow at its own.
    """
    # The same on a new machine, so that all ranks restore a checkpoint together or none does.
    restarts = str(directive.generation - 1)
    host, _, port = placement.workers[0].rpartition(":")
    task = {"type": placement.kind, "index": placement.task}
    workers, batch = directive.config.workers, directive.config.global_batch
    kept = {name: value for name, value in environment.items() if name not in WITHHELD_VARIABLES}
    return {
        **kept,
        **dict.fromkeys(("RANK", "GROUP_RANK", "ROLE_RANK", "PET_NODE_RANK"), str(placement.rank)),
        **dict.fromkeys(
            ("WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "PET_NNODES"), str(workers)
        ),
        **dict.fromkeys(("MASTER_ADDR", "PET_MASTER_ADDR"), host),
        **dict.fromkeys(("MASTER_PORT", "PET_MASTER_PORT"), port),
        "TF_CONFIG": json.dumps({"cluster": placement.cluster, "task": task}),
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


def fill_command(command: Sequence[str], placement: Placement) -> list[str]:
    """Return a command with what scripts for TensorFlow's clusters take as flags filled in.

    Other braces stay as they are.

    >>> fill_command(["train.py", "--hosts={worker_hosts}", "{x}"], Placement(("a:1", "b:2"), 0, 0))
    ['train.py', '--hosts=a:1,b:2', '{x}']
    """
    known = {
        "{worker_hosts}": ",".join(placement.workers),
        "{ps_hosts}": ",".join(placement.servers),
        "{job_name}": placement.kind,
        "{task_index}": str(placement.task),
    }
    filled = list(command)
    for name, value in known.items():
        filled = [argument.replace(name, value) for argument in filled]
    return filled


STOPPED_AT_BOUNDARY = "in order"
LOST_PEERS = "lost the others"
NOT_DISTRIBUTED = "trains alone"
NOT_RESIZABLE = "keeps its workers"
STEPS_BEFORE_VERDICT = 10  # after which a script that has met no other process counts as alone

EXIT_STOPPED = 75  # EX_TEMPFAIL: training stopped cleanly and continues in a new process


def write_departures(path: Path, departures: Mapping[int, bool]) -> None:
    """Tell the chief's process which tasks are not to be waited for, and whether they are lost."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(departures))
    fresh.replace(path)


def read_departures(path: Path) -> dict[int, bool]:
    """Return what `write_departures` wrote last; nothing if it wrote nothing."""
    try:
        return {int(task): bool(is_lost) for task, is_lost in json.loads(path.read_text()).items()}
    except (OSError, ValueError):
        return {}


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
