"""The environment variables of a machine and of the training process on it.

A launch carries five of them, constant in size and without anything of the user's. The supervisor
on the machine reads them with `from_env()`, adds what enrolment brought and what only the machine
knows (token, heartbeat), and hands all of them to the training command in the same form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Literal

from pydantic import TypeAdapter

from scavenger.layout import PLAIN
from scavenger.protocol import Role, TrainingStrategyName
from scavenger.stack import EAGER_NAME

PREFIX = "SCAVENGER_"
MetadataService = Literal["aws", "google"]
# Seconds from the end of a lease until the power goes, even if training still runs. A supervisor
# needs most of them to end its command; the controller pays for one more.
POWER_OFF_DELAY = 5.0
_CONTROLLER_URL = re.compile(
    r"https?://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]{0,128})?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnv:
    """One machine's variables; each attribute is `SCAVENGER_` and its name in capitals.

    Attributes:
        controller: URL of the controller.
        token: Secret that lets this machine speak for its job, or is exchanged for such a token at
            enrolment.
        job: Id of the job.
        worker: Id of this worker, equal to the id of its machine.
        prepaid: Seconds the machine may run before its first lease.
        role: Whether it trains or serves parameters.
        strategy: How the workers of the job train together.
        directory: Where the command starts if its job names no directory; None for where the
            supervisor is.
        host: Address at which the other workers reach this one.
        boot_delay: Seconds a local machine pretends to boot.
        checkpoints: Directory of the job's checkpoints; None for none.
        checkpoint_every: Seconds between two checkpoints.
        checkpoint_keep: Number of checkpoints kept.
        checkpoint_store: Whether they are in a bucket, too.
        job_secret: Secret that workers and parameter servers of one job share.
        bundle_secret: What machines of the project sign compiled code with; empty to share none.
        spool: Directory in which measurements are written ahead; None keeps them in memory only.
        code: Directory into which the machine unpacks the user's code; None for a temporary one.
        pid_file: Where the supervisor writes its process id, by which a cloud of processes tells
            that the machine has booted; None for nowhere.
        heartbeat: Shared memory in which training says where it stands; None for none.
        deadline_file: Where the dead man's timer of a rented computer reads when it powers it off;
            the supervisor writes later deadlines there. None where there is no such timer.
        owns_computer: Whether the supervisor powers off the computer at its end.
        metadata: Whose metadata service tells the computer that it will be taken back; None where
            there is none.
        stack: The stack to rehearse before hello.
        local_batch: Samples to rehearse with; 0 for no rehearsal.
        layout: How the processes of this worker share the model, as `Layout` writes it.
        position: Which of these processes this is, from 0; the first one leads.
        processes: Directory where they meet; None where there is one process.
        next_layout: File where the first process writes the layout it is to be started again in;
            None where nothing would start it.
        ca: File with the certificate authority of the controller; None trusts the system's.
    """

    controller: str
    token: str = field(repr=False)
    job: str
    worker: str
    prepaid: float
    role: Role = "worker"
    strategy: TrainingStrategyName = "all_reduce"
    directory: str | None = None
    host: str = "127.0.0.1"
    boot_delay: float = 0.0
    checkpoints: str | None = None
    checkpoint_every: float = 60.0
    checkpoint_keep: int = 3
    checkpoint_store: bool = False
    job_secret: str = field(default="", repr=False)
    bundle_secret: str = field(default="", repr=False)
    spool: str | None = None
    code: str | None = None
    pid_file: str | None = None
    heartbeat: str | None = None
    deadline_file: str | None = None
    owns_computer: bool = False
    metadata: MetadataService | None = None
    stack: str = EAGER_NAME
    local_batch: int = 0
    layout: str = str(PLAIN)
    position: int = 0
    processes: str | None = None
    next_layout: str | None = None
    ca: str | None = None

    def to_env(self) -> dict[str, str]:
        """Return the variables; what has its default is left out.

        >>> me = WorkerEnv(controller="http://c", token="t", job="j", worker="w", prepaid=60.0)
        >>> me.to_env()["SCAVENGER_PREPAID"]
        '60.0'
        """
        values = {each: getattr(self, each.name) for each in fields(self)}
        return {
            variable(each): str(value)
            for each, value in values.items()
            if value is not None and value != each.default
        }

    @classmethod
    def from_env(cls, environment: Mapping[str, str]) -> WorkerEnv:
        """Read the variables of a machine.

        Raises:
            ValueError: One that has no default is missing or empty, or a value has the wrong type.
        """
        given = {each: environment.get(variable(each), "") for each in fields(cls)}
        for each, text in given.items():
            if not text and each.default is MISSING:
                raise ValueError(f"{variable(each)} is not set")
        return _ADAPTER.validate_python({each.name: text for each, text in given.items() if text})


_ADAPTER = TypeAdapter(WorkerEnv)


def check_controller_url(url: str) -> str:
    """Return the URL of a controller as it is; raises ValueError for one that machines cannot use.

    It stands in scripts, so no character of it may need quoting.
    """
    if not _CONTROLLER_URL.fullmatch(url):
        raise ValueError(f"{url!r} is no address: write e.g. https://scavenger.example.com:8321")
    return url


def variable(each: Field[Any]) -> str:
    """Return the variable of a field of `WorkerEnv`."""
    return PREFIX + each.name.upper()
