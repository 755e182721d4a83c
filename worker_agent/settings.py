"""Settings of a machine and of instrumented processes, read from the environment only here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

LAUNCH_CREDENTIAL_PREFIX = "scb_"  # begins what a machine is launched with; it buys a token, once
PARAMETER_SERVER_MODULE = ("-m", "worker_agent.parameter_server")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Who this worker is and whom it talks to.

    Attributes:
        controller: URL of the controller.
        token: Secret that lets this worker speak for its job, or buys it one that does.
        job: Id of the job.
        worker: Id of this worker.
        host: Address at which the other workers reach this one.
        boot_delay: Seconds the machine pretends to boot.
        prepaid: Seconds the machine may run before its first lease.
        spool: Directory in which measurements are written ahead; None keeps them in memory only.
        checkpoints: Directory of the job's checkpoints; None for none.
        checkpoint_every: Seconds between two.
        checkpoint_keep: How many are kept.
        job_secret: Secret that workers and parameter servers of one job share.
        strategy: How the workers train together; see ``scavenger.protocol.TrainingStrategyName``.
        heartbeat: Where the session says how training advances; None when nobody watches.
        drain: Seconds training has to end in order once its machine was told to end.
        stall: Seconds without an iteration after which training counts as stuck, at the least.
    """

    controller: str
    token: str = field(repr=False)
    job: str
    worker: str
    host: str = "127.0.0.1"
    boot_delay: float = 0.0
    prepaid: float
    spool: str | None = None
    checkpoints: str | None = None
    checkpoint_every: float = 60.0
    checkpoint_keep: int = 3
    job_secret: str = field(default="", repr=False)
    strategy: str = "all_reduce"
    heartbeat: str | None = None
    drain: float = 30.0
    stall: float = 300.0


@dataclass(frozen=True, slots=True)
class TrainingCommand:
    """The user's training command.

    Attributes:
        words: Program and arguments.
        directory: Where it starts; None for where the supervisor is.
    """

    words: tuple[str, ...]
    directory: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstrumentationSettings:
    """What ``agent run`` tells the processes it starts.

    Attributes:
        rows: File that takes what is measured, a line per iteration; None measures nothing.
        wish: File that asks for a stop at the next boundary once it exists; None never stops.
        ended: File that tells the launcher how training ended, where an exit code does not.
        checkpoints: Directory of the checkpoints for a restart.
        checkpoint_every: Seconds between two while training runs.
        checkpoint_keep: How many are kept, the newest ones.
        job: Id of the job, for the checkpoints.
        generation: Generation these processes train in; the newer checkpoint has the later one.
        restarts: Generations before this one, the same on every machine; 0 in the first.
        rank: Rank of this process among those that run the script, by torchrun's contract.
        workers: How many those are.
        is_under_torchrun: Whether torchrun started this process; it takes any code but 0
            for a failure.
    """

    rows: str | None = None
    wish: str | None = None
    ended: str | None = None
    checkpoints: str | None = None
    checkpoint_every: float = 60.0
    checkpoint_keep: int = 3
    job: str = "none"
    generation: int = 0
    restarts: int = 0
    rank: int = 0
    workers: int = 1
    is_under_torchrun: bool = False


def inherited_environment() -> dict[str, str]:
    """Return the environment of this process, for a command it starts."""
    return dict(os.environ)


def read_instrumentation_settings() -> InstrumentationSettings:
    """Return what ``agent run`` told this process."""
    return InstrumentationSettings(
        rows=os.environ.get("SCAVENGER_ROWS"),
        wish=os.environ.get("SCAVENGER_WISH"),
        ended=os.environ.get("SCAVENGER_ENDED"),
        checkpoints=os.environ.get("SCAVENGER_CHECKPOINTS"),
        checkpoint_every=float(os.environ.get("SCAVENGER_CHECKPOINT_EVERY", "60")),
        checkpoint_keep=int(os.environ.get("SCAVENGER_CHECKPOINT_KEEP", "3")),
        job=os.environ.get("TORCHELASTIC_RUN_ID", "none"),
        generation=int(os.environ.get("SCAVENGER_GENERATION", "0")),
        restarts=int(os.environ.get("SCAVENGER_RESTARTS", "0")),
        rank=int(os.environ.get("RANK", "0")),
        workers=int(os.environ.get("WORLD_SIZE", "1")),
        is_under_torchrun="TORCHELASTIC_USE_AGENT_STORE" in os.environ,
    )


def read_settings() -> AgentSettings | None:
    """Return the settings of this machine, or None outside a Scavenger job.

    Raises:
        ValueError: A job is given but another variable that must be there is not.
    """
    job = os.environ.get("SCAVENGER_JOB")
    if job is None:
        return None
    return AgentSettings(
        controller=_required("SCAVENGER_CONTROLLER"),
        token=_required("SCAVENGER_TOKEN"),
        job=job,
        worker=_required("SCAVENGER_WORKER"),
        host=os.environ.get("SCAVENGER_HOST", "127.0.0.1"),
        boot_delay=float(os.environ.get("SCAVENGER_BOOT_DELAY", "0")),
        prepaid=float(_required("SCAVENGER_PREPAID")),
        spool=os.environ.get("SCAVENGER_SPOOL"),
        checkpoints=os.environ.get("SCAVENGER_CHECKPOINTS"),
        checkpoint_every=float(os.environ.get("SCAVENGER_CHECKPOINT_EVERY", "60")),
        checkpoint_keep=int(os.environ.get("SCAVENGER_CHECKPOINT_KEEP", "3")),
        job_secret=os.environ.get("SCAVENGER_JOB_SECRET", ""),
        strategy=os.environ.get("SCAVENGER_STRATEGY", "all_reduce"),
        heartbeat=os.environ.get("SCAVENGER_HEARTBEAT"),
        drain=float(os.environ.get("SCAVENGER_DRAIN", "30")),
        stall=float(os.environ.get("SCAVENGER_STALL", "300")),
    )


def read_training_command() -> TrainingCommand:
    """Return the command this machine was started for: the user's, or a parameter server.

    Raises:
        ValueError: It is missing, or not a JSON list.
    """
    if os.environ.get("SCAVENGER_ROLE") == "server":
        return TrainingCommand((sys.executable, *PARAMETER_SERVER_MODULE), None)
    words = json.loads(_required("SCAVENGER_COMMAND"))
    if not isinstance(words, list) or not words:
        raise ValueError(f"SCAVENGER_COMMAND must be a JSON list of words, got {words!r}")
    return TrainingCommand(tuple(map(str, words)), os.environ.get("SCAVENGER_DIRECTORY"))


def training_environment(spool: Path, heartbeat: str, secrets: Mapping[str, str]) -> dict[str, str]:
    """Return what the training command gets: all of ours, and one thread unless it asks for more.

    Secrets are what this machine was not launched with. And several workers that share one
    computer, each with as many threads as there are cores, would spend their time waiting for
    one another.
    """
    ours = {"SCAVENGER_SPOOL": str(spool), "SCAVENGER_HEARTBEAT": heartbeat}
    return {"OMP_NUM_THREADS": "1"} | dict(os.environ) | dict(secrets) | ours


def _required(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ValueError(f"{name} is not set")
    return value
