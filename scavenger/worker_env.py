"""What a controller tells a machine before the machine can ask: its environment variables.

The controller builds one `WorkerEnv` for each launch, and every cloud passes `to_env()` on. The
supervisor on the machine reads it back with `from_env()`, adds what only the machine knows (token,
heartbeat), and hands it to the training command in the same form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from pydantic import TypeAdapter

from scavenger.protocol import Role, TrainingStrategyName

PREFIX = "SCAVENGER_"


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
        command: The user's training command, program first; unused by a parameter server.
        directory: Where the command starts; None for where the supervisor is.
        host: Address at which the other workers reach this one.
        boot_delay: Seconds a local machine pretends to boot.
        checkpoints: Directory of the job's checkpoints; None for none.
        checkpoint_every: Seconds between two checkpoints.
        checkpoint_keep: Number of checkpoints kept.
        drain: Seconds training has to end in order after its machine was told to end.
        stall: Least seconds without an iteration after which training counts as stuck.
        job_secret: Secret that workers and parameter servers of one job share.
        spool: Directory in which measurements are written ahead; None keeps them in memory only.
        pid_file: Where the supervisor writes its process id, by which a cloud of processes tells
            that the machine has booted; None for nowhere.
        heartbeat: Shared memory in which training says where it stands; None for none.
    """

    controller: str
    token: str = field(repr=False)
    job: str
    worker: str
    prepaid: float
    role: Role = "worker"
    strategy: TrainingStrategyName = "all_reduce"
    command: tuple[str, ...] = ()
    directory: str | None = None
    host: str = "127.0.0.1"
    boot_delay: float = 0.0
    checkpoints: str | None = None
    checkpoint_every: float = 60.0
    checkpoint_keep: int = 3
    drain: float = 30.0
    stall: float = 300.0
    job_secret: str = field(default="", repr=False)
    spool: str | None = None
    pid_file: str | None = None
    heartbeat: str | None = None

    def to_env(self) -> dict[str, str]:
        """Return the variables; what has its default is left out.

        >>> me = WorkerEnv(controller="http://c", token="t", job="j", worker="w", prepaid=60.0)
        >>> me.to_env()["SCAVENGER_PREPAID"]
        '60.0'
        """
        values = {each: getattr(self, each.name) for each in fields(self)}
        return {
            variable(each): _encoded(value)
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
        return _ADAPTER.validate_python(
            {
                each.name: _command(text) if each.name == "command" else text
                for each, text in given.items()
                if text
            }
        )


_ADAPTER = TypeAdapter(WorkerEnv)


def variable(each: Field[Any]) -> str:
    """Return the variable of a field of `WorkerEnv`."""
    return PREFIX + each.name.upper()


def _encoded(value: object) -> str:
    return json.dumps(value) if isinstance(value, tuple) else str(value)


def _command(text: str) -> list[str]:
    words = json.loads(text)
    if not isinstance(words, list) or not words:
        raise ValueError(f"{PREFIX}COMMAND must be a JSON list of words, got {words!r}")
    return [str(word) for word in words]
