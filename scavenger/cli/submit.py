"""``scavenger submit``: checks a job document here, then hands it to the controller."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from scavenger.cli.errors import UnusableDocument
from scavenger.cli.figures import words
from scavenger.cli.option import FormOption
from scavenger.cli.plan_summary import show_plan
from scavenger.cli.terminal import Form, terminal_of
from scavenger.cli.watch import accompany, wait
from scavenger.errors import InvalidDocument, Problem
from scavenger.job import JobSpec
from scavenger.submission import parse_job, validate_job

STANDARD_INPUT = Path("-")
# Names of what a process has open; they last no longer than it, even where they lead to files.
DESCRIPTORS = (Path("/dev/stdin"), Path("/dev/fd"), Path("/proc"))

File = Annotated[
    Path,
    typer.Argument(
        help="Job document, YAML or JSON (docs/job-spec.md); - reads standard input.",
    ),
]
Watch = Annotated[
    bool, typer.Option("--watch", help="Show the job until it has ended; ends as the job does.")
]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until the job has ended; ends as the job does.")
]
Name = Annotated[str | None, typer.Option("--name", help="Call the job so.")]


def submit(
    context: typer.Context,
    file: File,
    watch: Watch = False,
    wait_for_end: Wait = False,
    name: Name = None,
    output: FormOption = Form.TABLE,
) -> None:
    """Submit a job. Its command runs in the directory of the file, unless the file names one.

    A document from standard input or a pipe has no such directory: its command runs in yours.
    """
    terminal = terminal_of(context)
    spec = read_spec(file, name)
    with terminal.connect() as client:
        job = client.submit(json.dumps(spec.document()), "json")
        if output is Form.JSON:
            terminal.write(job.model_dump_json(indent=2))
        else:
            terminal.say(Text.assemble("Submitted ", words(job.name, "bold")))
            terminal.say(show_plan(spec))
            terminal.write(job.id)
        if watch:
            raise typer.Exit(accompany(terminal, client, job.id, output))
        if wait_for_end:
            raise typer.Exit(wait(terminal, client, job.id))
    terminal.say(words(f"Next: scavenger watch {job.id}"))


def read_spec(file: Path, name: str | None = None) -> JobSpec:
    """Read a job document from a file.

    Raises:
        UnusableDocument: Everything that is wrong with it, and where.
    """
    text = read_text(file)
    try:
        spec = parse_job(text, media_of(file, text), directory=str(directory_of(file)))
    except InvalidDocument as error:
        raise UnusableDocument(source_of(file), error.problems) from None
    return spec if name is None else rename(spec, name)


def rename(spec: JobSpec, name: str) -> JobSpec:
    """Return the spec with another name."""
    try:
        return validate_job({**spec.document(), "name": name})
    except InvalidDocument as error:
        raise UnusableDocument("--name", error.problems) from None


def read_text(file: Path) -> str:
    """Read a file or standard input, or say why it cannot be read."""
    try:
        return (sys.stdin.buffer.read() if file == STANDARD_INPUT else file.read_bytes()).decode()
    except OSError as error:
        message = error.strerror or str(error)
    except UnicodeDecodeError as error:
        message = f"is no UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
    raise UnusableDocument(source_of(file), [Problem("", message)])


def source_of(file: Path) -> str:
    """Name a file in a message."""
    return "standard input" if file == STANDARD_INPUT else str(file)


def directory_of(file: Path) -> Path:
    """Return where the command of a document runs: beside it, if it is a file that stays."""
    is_descriptor = any(
        place in DESCRIPTORS for place in (file.absolute(), *file.absolute().parents)
    )
    return file.resolve().parent if file.is_file() and not is_descriptor else Path.cwd()


def media_of(file: Path, text: str) -> Literal["yaml", "json"]:
    """Tell YAML from JSON by the name, or else by the first character."""
    match file.suffix.lower():
        case ".json":
            return "json"
        case ".yaml" | ".yml":
            return "yaml"
        case _:
            return "json" if text.lstrip().startswith("{") else "yaml"
