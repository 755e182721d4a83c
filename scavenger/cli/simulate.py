"""``scavenger simulate``: policies against an oracle, on a job whose truth is known."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from scavenger.cli.option import FormOption
from scavenger.cli.terminal import Form, terminal_of


class JobName(StrEnum):
    """A job of the paper's size."""

    RESNET18 = "resnet18"
    RESNET50 = "resnet50"
    TRANSFORMER = "transformer"


class Policy(StrEnum):
    """How to search."""

    PARTIAL = "partial"
    FULL = "full"
    AUTO = "auto"
    NONE = "none"
    UNIVERSAL = "universal"


class Aim(StrEnum):
    """What to optimise."""

    KNEE = "knee"
    FASTEST = "fastest"
    CHEAPEST = "cheapest"


def read_counts(text: str | None, option: str) -> tuple[int, ...] | None:
    """Read ascending whole numbers separated by commas, such as ``8,12,16,20``.

    Raises:
        typer.BadParameter: It is no such list; the message says what to write.
    """
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter(
            f"{text!r} is no list of whole numbers: write e.g. 8,12,16,20", param_hint=option
        )
    counts = tuple(int(part) for part in parts)
    if list(counts) != sorted(set(counts)) or counts[0] < 1:
        raise typer.BadParameter(
            f"{text!r} must ascend from at least 1: write e.g. 8,12,16,20", param_hint=option
        )
    return counts


Job = Annotated[JobName, typer.Option("--job", help="Which job of the paper's size to train.")]
Policies = Annotated[
    list[Policy] | None,
    typer.Option(
        "--strategy",
        help="How to search; repeat it to compare. 'none' has trained the same job before, "
        "'universal' the others.",
        show_default="partial, full, auto",
    ),
]
Objective = Annotated[Aim, typer.Option("--objective", help="What to choose by.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Worlds to repeat everything in.")]
Jitter = Annotated[
    float, typer.Option("--jitter", min=0, max=1, help="Spread of iteration times, as a share.")
]
Roughness = Annotated[
    float,
    typer.Option("--roughness", min=0, max=1, help="Spread of configurations around their law."),
]
Stragglers = Annotated[
    float,
    typer.Option(
        "--stragglers", min=0, max=1, help="Share of iterations with a worker three times as slow."
    ),
]
Drift = Annotated[
    float,
    typer.Option("--drift", min=0.1, max=10, help="Noise scale at the end over that at the start."),
]
Workers = Annotated[
    str | None,
    typer.Option("--workers", help="Worker counts to choose from, e.g. 8,12,16,20."),
]
Batches = Annotated[
    str | None,
    typer.Option("--batches", help="Global batches to choose from, e.g. 384,512,768,1024."),
]


def simulate(
    context: typer.Context,
    job: Job = JobName.RESNET18,
    strategy: Policies = None,
    objective: Objective = Aim.KNEE,
    seeds: Seeds = 10,
    jitter: Jitter = 0.05,
    roughness: Roughness = 0.03,
    stragglers: Stragglers = 0.01,
    drift: Drift = 2.0,
    workers: Workers = None,
    batches: Batches = None,
    output: FormOption = Form.TABLE,
) -> None:
    """Compare search strategies with an oracle, on a job whose truth is known. Nothing is started.

    Every strategy makes the same decisions as in the controller; seconds and dollars are booked
    from the first iteration to the target.
    """
    # What simulates takes longer to import than every other command takes to run.
    from scavenger.cli.simulation import Comparison, narrow, run_all, show_comparison, write
    from scavenger.simulator.paper import SETTINGS, Hazards

    terminal = terminal_of(context)
    counts, sizes = read_counts(workers, "--workers"), read_counts(batches, "--batches")
    try:
        setting = narrow(SETTINGS[job.value], counts, sizes)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--workers with --batches") from None
    comparison = Comparison(
        job=setting.name,
        objective=objective.value,
        strategies=tuple(
            each.value for each in strategy or (Policy.PARTIAL, Policy.FULL, Policy.AUTO)
        ),
        seeds=seeds,
        hazards=Hazards(jitter, roughness, stragglers, drift),
        workers=setting.space.workers,
        global_batches=setting.space.global_batches,
    )
    result = run_all(comparison, setting, terminal.chatter)
    if output is Form.JSON:
        terminal.write(write(result))
    else:
        terminal.data.print(show_comparison(result))
