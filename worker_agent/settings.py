"""What a machine is told through its environment; nothing else of the agent reads it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Who this worker is and whom it talks to.

    Attributes:
        controller: URL of the controller.
        token: Secret that lets this worker speak for its job.
        job: Id of the job.
        worker: Id of this worker.
        host: Address at which the other workers reach this one.
        boot_delay: Seconds the machine pretends to boot.
        prepaid: Seconds the machine may run before its first lease.
        last_report: Where to leave a last report that the controller did not hear.
    """

    controller: str
    token: str = field(repr=False)
    job: str
    worker: str
    host: str = "127.0.0.1"
    boot_delay: float = 0.0
    prepaid: float
    last_report: str | None = None

    def leave_last_report(self, content: bytes) -> None:
        """Leave a report for the supervisor to deliver after this process has ended."""
        if self.last_report is None:
            return
        fresh = Path(f"{self.last_report}.new")
        fresh.write_bytes(content)
        fresh.replace(self.last_report)


@dataclass(frozen=True, slots=True)
class Command:
    """The user's training command.

    Attributes:
        words: Program and arguments.
        directory: Where it starts; None for where the supervisor is.
    """

    words: tuple[str, ...]
    directory: str | None


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
        last_report=os.environ.get("SCAVENGER_LAST_REPORT"),
    )


def read_command() -> Command:
    """Return the command this machine was started for.

    Raises:
        ValueError: It is missing, or not a JSON list.
    """
    words = json.loads(_required("SCAVENGER_COMMAND"))
    if not isinstance(words, list) or not words:
        raise ValueError(f"SCAVENGER_COMMAND must be a JSON list of words, got {words!r}")
    return Command(tuple(map(str, words)), os.environ.get("SCAVENGER_DIRECTORY"))


def training_environment(last_report: Path) -> dict[str, str]:
    """Return what the training command gets: all of ours, and one thread unless it asks for more.

    Several workers share one computer, each with as many threads as there are cores, would spend
    their time waiting for one another.
    """
    ours = {"SCAVENGER_LAST_REPORT": str(last_report)}
    return {"OMP_NUM_THREADS": "1"} | dict(os.environ) | ours


def _required(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ValueError(f"{name} is not set")
    return value
