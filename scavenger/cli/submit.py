"""``scavenger submit``: checks a job document here, then hands it to the controller."""

from __future__ import annotations

import json
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

File = Annotated[Path, typer.Argument(help="Job document, YAML or JSON (docs/job-spec.md).")]
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
    """Submit a job. Its command runs in the directory of the file, unless the file names one."""
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
        spec = parse_job(text, media_of(file, text), directory=str(file.resolve().parent))
    except InvalidDocument as error:
        raise UnusableDocument(str(file), error.problems) from None
    return spec if name is None else rename(spec, name)


def rename(spec: JobSpec, name: str) -> JobSpec:
    """Return the spec with another name."""
    try:
        return validate_job({**spec.document(), "name": name})
    except InvalidDocument as error:
        raise UnusableDocument("--name", error.problems) from None


def read_text(file: Path) -> str:
    """Read a file, or say why it cannot be read."""
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise UnusableDocument(str(file), [Problem("", error.strerror or str(error))]) from None
    except UnicodeDecodeError as error:
        message = f"is no UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        raise UnusableDocument(str(file), [Problem("", message)]) from None


def media_of(file: Path, text: str) -> Literal["yaml", "json"]:
    """Tell YAML from JSON by the name, or else by the first character."""
    match file.suffix.lower():
        case ".json":
            return "json"
        case ".yaml" | ".yml":
            return "yaml"
        case _:
            return "json" if text.lstrip().startswith("{") else "yaml"
