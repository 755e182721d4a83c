"""Settings of a machine and of instrumented processes, read from the environment only here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from scavenger.worker_env import MetadataService, WorkerEnv, variable

METADATA_ADDRESS = "169.254.169.254"  # of both clouds, and reached from the machine alone


@dataclass(frozen=True, slots=True, kw_only=True)
class InstrumentationSettings:
    """Settings that ``agent run`` passes to the processes of a script.

    Attributes:
        rows: File for measured iterations, one line each; None measures nothing.
        stop_request: File that requests a stop at the next boundary once it exists; None never
            stops.
        outcome: File that tells the launcher how training ended, if an exit code cannot.
        checkpoints: Directory of the checkpoints for a restart.
        checkpoint_every: Seconds between two while training runs.
        checkpoint_keep: Number of newest checkpoints that are kept.
        job: Id of the job, for the checkpoints.
        generation: Generation these processes train in; of two checkpoints that of the later
            generation is newer.
        restarts: Generations before this one, the same on every machine; 0 in the first.
        rank: Rank of this process among those that run the script, by torchrun's contract.
        workers: Number of those processes.
        is_under_torchrun: Whether torchrun started this process; it takes any code but 0
            for a failure.
        rebatch: Samples of all processes to which data sets of ``tf.distribute`` are set; None
            leaves them as they are.
        tasks: Task indexes of a cluster with parameter servers; 0 where the agent does not run it.
        departures: File that tells the chief which of them are not to be waited for.
        gate: File that lets a process go on where it makes its strategy; None never holds it.
        arrived: File that a process makes when it has come there.
        joined: File that a process makes when it serves a coordinator; None has none.
        spare_tasks: Where a server reaches tasks whose workers come later, by their index from the
            last one that it knows.
        audit: File for the lines that read device values; None audits nothing.
        profile: File for what the blocks of the model take; None profiles nothing.
    """

    rows: str | None = None
    stop_request: str | None = None
    outcome: str | None = None
    checkpoints: str | None = None
    checkpoint_every: float = 60.0
    checkpoint_keep: int = 3
    job: str = "none"
    generation: int = 0
    restarts: int = 0
    rank: int = 0
    workers: int = 1
    is_under_torchrun: bool = False
    rebatch: int | None = None
    tasks: int = 0
    departures: str | None = None
    gate: str | None = None
    arrived: str | None = None
    joined: str | None = None
    spare_tasks: tuple[str, ...] = ()
    audit: str | None = None
    profile: str | None = None


def inherited_environment() -> dict[str, str]:
    """Return the environment of this process, for a command it starts."""
    return dict(os.environ)


def read_instrumentation_settings() -> InstrumentationSettings:
    """Return the settings of this process from ``agent run``."""
    return InstrumentationSettings(
        rows=os.environ.get("SCAVENGER_ROWS"),
        stop_request=os.environ.get("SCAVENGER_WISH"),
        outcome=os.environ.get("SCAVENGER_ENDED"),
        checkpoints=os.environ.get("SCAVENGER_CHECKPOINTS"),
        checkpoint_every=float(os.environ.get("SCAVENGER_CHECKPOINT_EVERY", "60")),
        checkpoint_keep=int(os.environ.get("SCAVENGER_CHECKPOINT_KEEP", "3")),
        job=os.environ.get("TORCHELASTIC_RUN_ID", "none"),
        generation=int(os.environ.get("SCAVENGER_GENERATION", "0")),
        restarts=int(os.environ.get("SCAVENGER_RESTARTS", "0")),
        rank=int(os.environ.get("RANK", "0")),
        workers=int(os.environ.get("WORLD_SIZE", "1")),
        is_under_torchrun="TORCHELASTIC_USE_AGENT_STORE" in os.environ,
        tasks=int(os.environ.get("SCAVENGER_TASKS", "0")),
        departures=os.environ.get("SCAVENGER_DEPARTURES"),
        gate=os.environ.get("SCAVENGER_GATE"),
        arrived=os.environ.get("SCAVENGER_ARRIVED"),
        joined=os.environ.get("SCAVENGER_JOINED"),
        audit=os.environ.get("SCAVENGER_AUDIT"),
        profile=os.environ.get("SCAVENGER_PROFILE"),
        spare_tasks=tuple(filter(None, os.environ.get("SCAVENGER_SPARE_TASKS", "").split(","))),
        rebatch=None if (batch := os.environ.get("SCAVENGER_REBATCH")) is None else int(batch),
    )


def read_settings() -> WorkerEnv | None:
    """Return the settings of this machine, or None outside a Scavenger job.

    Raises:
        ValueError: A variable of the job is missing or has the wrong type.
    """
    return WorkerEnv.from_env(os.environ) if os.environ.get("SCAVENGER_JOB") else None


def metadata_url(service: MetadataService) -> str:
    """Return where a cloud answers its machines, as the libraries of its vendor find it."""
    match service:
        case "aws":
            given = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
            return (given or f"http://{METADATA_ADDRESS}").rstrip("/")
        case "google":
            return f"http://{os.environ.get('GCE_METADATA_HOST') or METADATA_ADDRESS}"


def training_environment(worker: WorkerEnv, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the training command: that of this process, and more.

    Workers that share a computer, each with as many threads as there are cores, would spend their
    time waiting for one another; so the default is one thread.

    Args:
        worker: The variables of ours, in place of those that this machine booted with.
        variables: What the job adds, secrets among it.
    """
    return user_environment(variables) | worker.to_env()


def user_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the user's command without a job: nothing of ours but its own.

    Args:
        variables: What the job adds, secrets among it.
    """
    booted_with = {variable(each) for each in fields(WorkerEnv)}
    inherited = {name: text for name, text in os.environ.items() if name not in booted_with}
    return {"OMP_NUM_THREADS": "1"} | inherited | dict(variables)
