"""RunSpec: the command that every worker runs, its code, environment and checkpoints."""

from __future__ import annotations

import itertools
import re
import shlex
from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    Strict,
    ValidationInfo,
    field_validator,
)

from scavenger.code_archive import CODE_DIGEST
from scavenger.job.fields import Duration, SpecModel, StrictText, require_value
from scavenger.job.messages import show_value

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_IMAGE = re.compile(r"[!-~]{1,255}")
_SECRET = re.compile("TOKEN|SECRET|KEY|PASSW|CRED", re.IGNORECASE)


def _check_variable_name(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise ValueError(
            f"{show_value(name)} names no variable: write letters, digits and underscores"
        )
    if name.upper().startswith("SCAVENGER_"):
        raise ValueError(
            f"{show_value(name)} is set by Scavenger: choose a name without SCAVENGER_"
        )
    return name


def _check_public_variable(name: str) -> str:
    _check_variable_name(name)
    if _SECRET.search(name):
        raise ValueError(
            f"{show_value(name)} looks like a secret, and this document is stored and shown: "
            "name it in run.secrets and give its value to the controller, in a file of that name"
        )
    return name


def _check_distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("names one twice: write each once")
    return names


def check_directory(path: str) -> str:
    """Return an absolute path as it is; raises ValueError for any other."""
    if not path.startswith("/"):
        raise ValueError(f"{show_value(path)} is not absolute: write e.g. /srv/train")
    return path


def _check_directory_inside(path: str) -> str:
    if path.startswith("/"):
        raise ValueError(
            f"{show_value(path)} is absolute, and with run.code the command runs in the code: "
            "write a path inside it, e.g. src, or leave it out"
        )
    if ".." in path.split("/") or not path:
        raise ValueError(f"{show_value(path)} leads to no folder in the code: write e.g. src")
    return path


def _check_code(digest: str) -> str:
    if not CODE_DIGEST.fullmatch(digest):
        raise ValueError(
            f"{show_value(digest)} is no SHA-256 in 64 lower-case hexadecimal digits: leave it out "
            "and submit with --code DIR, which sends the code and fills it in"
        )
    return digest


def _check_image(image: str) -> str:
    if not _IMAGE.fullmatch(image):
        raise ValueError(
            f"{show_value(image)} names no image: write the cloud's word for a machine image, "
            "e.g. ami-0123456789abcdef0"
        )
    return image


def _refuse_shell(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(f"{show_value(value)} is a string: write a list, e.g. {_arguments(value)}")
    return value


def _arguments(command: str) -> str:
    """Write a shell command as a list if it is short, else any list as an example."""
    try:
        words = shlex.split(command) if len(command) <= 80 else []
    except ValueError:
        words = []
    return f"[{', '.join(map(show_value, words or ['python', 'train.py']))}]"


def _check_program(command: tuple[str, ...]) -> tuple[str, ...]:
    if not command or not command[0]:
        raise ValueError('names no program: write e.g. ["python", "train.py"]')
    return command


class CheckpointsSpec(SpecModel):
    """How often checkpoints are written, so that training can resume after all workers are lost.

    Attributes:
        every: Seconds between two checkpoints.
        keep: Checkpoints that are kept, the newest ones.
        directory: Absolute path that every machine of the job reaches; each job writes to a
            directory of its own in it. None leaves it to the controller.
    """

    every: Duration = Field(60.0, examples=["60s"])
    keep: Annotated[int, Strict(), Field(ge=1, le=1000)] = Field(3, examples=[3])
    directory: Annotated[
        Annotated[StrictText, AfterValidator(check_directory)] | None,
        BeforeValidator(require_value),
    ] = Field(None, examples=["/srv/checkpoints"])


class RunSpec(SpecModel):
    """What every worker runs.

    Attributes:
        command: Program and arguments, handed over as they are, without a shell.
        code: SHA-256 of the code that each machine fetches and runs the command in, as the
            controller stores it; None for none. ``scavenger submit --code`` fills it in.
        directory: Absolute path the command runs in; None leaves it to the worker. With ``code``,
            a path inside the code; None for its top.
        setup: Program and arguments, run once on each machine before the command, in the same
            directory; None for nothing.
        image: Machine image to boot, in the cloud's own word (of AWS an id, of Google a path), in
            place of the one of the clouds file. It is no container image.
        env: Environment variables added to the worker's own; no secrets.
        secrets: Environment variables whose values the controller keeps, and no document.
        checkpoints: How often checkpoints are written; None for the defaults.
        stall: Seconds without an iteration that are always allowed; a command that takes
            longer has its stack dumped and is restarted.
        drain: Seconds the command has to end in order once its machine was told to end.
    """

    command: Annotated[
        tuple[StrictText, ...], BeforeValidator(_refuse_shell), AfterValidator(_check_program)
    ] = Field(examples=['["python", "train.py"]'], json_schema_extra={"minItems": 1})
    code: Annotated[
        Annotated[StrictText, AfterValidator(_check_code)] | None, BeforeValidator(require_value)
    ] = Field(
        None,
        examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
        json_schema_extra={"pattern": f"^{CODE_DIGEST.pattern}$"},
    )
    directory: Annotated[StrictText | None, BeforeValidator(require_value)] = Field(
        None, examples=["/srv/train"]
    )
    setup: Annotated[
        Annotated[
            tuple[StrictText, ...], BeforeValidator(_refuse_shell), AfterValidator(_check_program)
        ]
        | None,
        BeforeValidator(require_value),
    ] = Field(None, examples=["[pip, install, -r, requirements.txt]"])
    image: Annotated[
        Annotated[StrictText, AfterValidator(_check_image)] | None, BeforeValidator(require_value)
    ] = Field(None, examples=["ami-0123456789abcdef0"])
    env: dict[Annotated[StrictText, AfterValidator(_check_public_variable)], StrictText] = Field(
        default_factory=dict, examples=["{LOG_LEVEL: info}"]
    )
    secrets: Annotated[
        tuple[Annotated[StrictText, AfterValidator(_check_variable_name)], ...],
        AfterValidator(_check_distinct),
    ] = Field((), examples=["[HF_TOKEN]"])
    checkpoints: Annotated[CheckpointsSpec | None, BeforeValidator(require_value)] = Field(
        None, examples=["{every: 60s, keep: 3}"]
    )
    stall: Duration = Field(300.0, examples=["5m"])
    drain: Duration = Field(30.0, examples=["30s"])

    @property
    def is_under_agent(self) -> bool:
        """Whether the command is ``scavenger agent run`` with a script that knows no agent."""
        before = itertools.takewhile(lambda argument: argument != "--", self.command)
        pairs = itertools.pairwise(before)
        return any(pair in (("agent", "run"), ("worker_agent", "run")) for pair in pairs)

    @field_validator("directory")
    @classmethod
    def _is_where_the_command_can_run(cls, path: str, info: ValidationInfo) -> str:
        if "code" not in info.data:  # it is invalid, and told
            return path
        return check_directory(path) if info.data["code"] is None else _check_directory_inside(path)
