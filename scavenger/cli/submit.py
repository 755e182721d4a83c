"""``scavenger submit``: validates a job document, prints the plan, sends code and document."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from scavenger.cli.errors import InvalidInput
from scavenger.cli.options import NoCapOption, OutputOption
from scavenger.cli.output import (
    OutputFormat,
    Terminal,
    format_dollars,
    format_seconds,
    get_terminal,
    plain_text,
    pluralize,
    render_facts,
)
from scavenger.cli.watch import follow_job, wait_for_job
from scavenger.client.client import Client
from scavenger.client.code import PackedCode, pack_code
from scavenger.client.documents import document_format
from scavenger.errors import DocumentProblem, InvalidDocument
from scavenger.job.pricing import ResourcePriceSpec
from scavenger.job.spec import JobSpec
from scavenger.job.validation import parse_job, validate_job
from scavenger.money import format_rate
from scavenger.planning.search.registry import SEARCHES
from scavenger.schemas.plans import PlanView

STANDARD_INPUT = Path("-")
# Names of open descriptors. They end with this process, even where they lead to regular files.
DESCRIPTOR_DIRECTORIES = (Path("/dev/stdin"), Path("/dev/fd"), Path("/proc"))

JobFileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Job document, YAML or JSON (docs/job-spec.md); - reads standard input.",
    ),
]
OptionalJobFileArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="Job document, YAML or JSON (docs/job-spec.md); - reads standard input.",
    ),
]
PlanOption = Annotated[
    str | None,
    typer.Option("--plan", metavar="ID", help="Submit this plan, in place of a document."),
]
WatchOption = Annotated[
    bool, typer.Option("--watch", help="Show the job until it ends; exit with the job's code.")
]
WaitOption = Annotated[
    bool, typer.Option("--wait", help="Wait until the job ends; exit with the job's code.")
]
NameOption = Annotated[
    str | None, typer.Option("--name", help="Name of the job (overrides name in the file).")
]
CodeOption = Annotated[
    Path | None,
    typer.Option(
        "--code",
        metavar="DIR",
        help="Send this directory to the machines, without what .gitignore leaves out, and run "
        "the command in it.",
    ),
]


def submit(
    context: typer.Context,
    file: OptionalJobFileArgument = None,
    plan: PlanOption = None,
    code: CodeOption = None,
    watch: WatchOption = False,
    wait_for_end: WaitOption = False,
    name: NameOption = None,
    no_cap: NoCapOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Submit a job. Its command runs in the directory of the file, unless the file names another.

    A document from standard input or a pipe has no directory: its command runs in the current one.
    With --code the command runs on each machine in a copy of DIR, of at most 64 MiB packed. With
    --plan exactly what ``scavenger plan`` showed is submitted, once.
    """
    terminal, is_new = get_terminal(context), True
    with ExitStack() as opened:
        if plan is None:
            with nullcontext() if code is None else pack_code(code) as packed:
                source = require_file(file)
                spec = read_job_file(source, name, None if packed is None else packed.digest)
                require_cap(spec, source, is_waived=no_cap)
                client = opened.enter_context(terminal.connect())
                if packed is not None:
                    send_code(terminal, client, packed)
            # The parsed document, which names the directory of the file, and not the text.
            job = client.submit(json.dumps(spec.document()), "json")
            # The controller writes down the price of the machines, where the file names none.
            wish = spec if spec.price is not None else validate_job(job.spec)
        else:
            require_plan_alone(file=file, code=code, name=name)
            client = opened.enter_context(terminal.connect())
            planned = client.get_plan(plan)
            if planned.job is None:
                require_planned_cap(planned, is_waived=no_cap)
            job = client.submit_plan(plan)
            wish, is_new = validate_job(job.spec), planned.job is None
        if output is not OutputFormat.TABLE:
            terminal.print_result(job, output, "")
        else:
            told = "Submitted " if is_new else "This plan was submitted before, as "
            terminal.print_message(Text.assemble(told, plain_text(job.name, "bold")))
            terminal.print_message(render_plan(wish))
            terminal.write_line(job.id)
        if watch:
            raise typer.Exit(follow_job(terminal, client, job.id, output))
        if wait_for_end:
            raise typer.Exit(wait_for_job(terminal, client, job.id))
    terminal.print_message(f"Next: scavenger watch {job.id}")


def require_file(file: Path | None) -> Path:
    """Return the file of a job; raises BadParameter where neither it nor a plan is named."""
    if file is None:
        raise typer.BadParameter("name a job document, or a plan: scavenger submit --plan ID")
    return file


def require_plan_alone(**others: object) -> None:
    """Refuse what would change a plan; raises BadParameter."""
    given = ", ".join(name for name, value in others.items() if value is not None)
    if given:
        raise typer.BadParameter(f"a plan is submitted as it is, so leave out {given}")


def require_planned_cap(planned: PlanView, *, is_waived: bool) -> None:
    """Refuse a plan without a cap, unless that is meant.

    Raises:
        InvalidInput: It has no max_cost, and the user does not say that this is meant.
    """
    if planned.cap is None and not is_waived:
        message = "max_cost is missing, so nothing limits what the job spends: plan one with it"
        next_step = "submit again, or pass --no-cap if no limit is meant"
        raise InvalidInput(planned.id, [DocumentProblem("limits", message)], next_step)


def send_code(terminal: Terminal, client: Client, packed: PackedCode) -> None:
    """Send code, unless the controller has it."""
    is_there = client.has_code(packed.digest)
    if not is_there:
        client.upload_code(packed.digest, packed.file, packed.size)
    size = f"{pluralize(packed.entries, 'file')}, {packed.size / 1024:,.0f} KiB packed"
    how = "the controller has it already" if is_there else "sent"
    terminal.print_message(f"Code: {size}, {how}")


def read_job_file(file: Path, name: str | None = None, code: str | None = None) -> JobSpec:
    """Read a job document from a file or standard input.

    Args:
        file: The file.
        name: Name of the job, in place of the one in the document.
        code: SHA-256 of the code to run, in place of the one in the document.

    Raises:
        InvalidInput: All problems of the document, with line and column.
    """
    text = read_document(file)
    try:
        directory = str(working_directory_of(file))
        spec = parse_job(text, document_format(file, text), directory=directory, code=code)
    except InvalidDocument as error:
        raise InvalidInput(source_name(file), error.problems) from None
    return spec if name is None else rename_spec(spec, name)


def require_cap(spec: JobSpec, file: Path, *, is_waived: bool) -> None:
    """Refuse a job that may spend any amount; machines that cost nothing need no cap.

    Raises:
        InvalidInput: It has no max_cost, and the user does not say that this is meant.
    """
    is_free = spec.price is not None and spec.price_per_hour == 0 and spec.server_price == 0
    if spec.limits.max_cost is not None or is_waived or is_free:
        return
    message = "max_cost is missing, so nothing limits what the job spends: write e.g. 5.00 USD"
    next_step = "submit again, or pass --no-cap if no limit is meant"
    raise InvalidInput(source_name(file), [DocumentProblem("limits", message)], next_step)


def rename_spec(spec: JobSpec, name: str) -> JobSpec:
    """Return the spec with another name."""
    try:
        return validate_job({**spec.document(), "name": name})
    except InvalidDocument as error:
        raise InvalidInput("--name", error.problems) from None


def read_document(file: Path) -> str:
    """Read a file or standard input; raises InvalidInput where it cannot be read."""
    try:
        return (sys.stdin.buffer.read() if file == STANDARD_INPUT else file.read_bytes()).decode()
    except FileNotFoundError:
        message = "there is no such file: scavenger init writes one"
    except IsADirectoryError:
        message = f"is a directory: name a file in it, e.g. {file / 'job.yaml'}"
    except OSError as error:
        message = error.strerror or str(error)
    except UnicodeDecodeError as error:
        message = f"is no UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
    raise InvalidInput(source_name(file), [DocumentProblem("", message)])


def source_name(file: Path) -> str:
    """Return the name of a file for messages."""
    return "standard input" if file == STANDARD_INPUT else str(file)


def working_directory_of(file: Path) -> Path:
    """Return where the command of a document runs: its directory, or the current one for a pipe."""
    # /dev/stdin of `scavenger submit /dev/stdin < job.yaml` is a regular file, too.
    is_descriptor = any(
        place in DESCRIPTOR_DIRECTORIES for place in (file.absolute(), *file.absolute().parents)
    )
    return file.resolve().parent if file.is_file() and not is_descriptor else Path.cwd()


def render_plan(spec: JobSpec) -> RenderableType:
    """Render the plan of a job."""
    return render_facts(plan_facts(spec))


def plan_facts(spec: JobSpec) -> list[tuple[str, str]]:
    """Return what a job will do, one fact per line."""
    return [
        ("model", f"{spec.model.key}, {spec.model.dataset_size:,} samples"),
        ("target", spec.target_text),
        ("space", describe_space(spec)),
        ("search", f"{spec.search}: {SEARCHES[spec.search].describe(spec.space)}"),
        ("objective", spec.objective_text),
        *(
            [("laws", "the paper's forms, fitted to the measurements")]
            if spec.laws == "paper"
            else []
        ),
        ("cap", describe_cap(spec)),
        ("runs", " ".join(spec.run.command)),
        *([("setup", " ".join(spec.run.setup))] if spec.run.setup else []),
        ("in", describe_directory(spec)),
    ]


def describe_directory(spec: JobSpec) -> str:
    """Write where the command runs."""
    if spec.run.code is None:
        return spec.run.directory or "the worker's own directory"
    return f"{spec.run.directory or '.'} of the code {spec.run.code[:12]}"


def describe_space(spec: JobSpec) -> str:
    """Write the number of configurations to choose from, and their range."""
    workers, batches = spec.space.workers, spec.space.global_batches
    size = pluralize(sum(1 for _ in spec.space), "configuration")
    return f"{size}: K {workers[0]}–{workers[-1]}, B {batches[0]}–{batches[-1]}"


def describe_cap(spec: JobSpec) -> str:
    """Write the limits of cost and time, and the price of a worker."""
    limits = spec.limits
    cost = "no cost limit" if limits.max_cost is None else format_dollars(float(limits.max_cost))
    time = "" if limits.max_time is None else f" · {format_seconds(limits.max_time)}"
    return f"{cost}{time} · {describe_price(spec)}"


def describe_price(spec: JobSpec) -> str:
    """Write the price of one worker."""
    most = "at most " if isinstance(spec.price, ResourcePriceSpec) else ""
    quantum = f", billed by {format_seconds(spec.quantum)}" if spec.quantum else ""
    return f"one worker costs {most}{format_rate(float(spec.price_per_hour))}{quantum}"
