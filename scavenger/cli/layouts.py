"""``scavenger plan --layouts``: which layout of a model pays, from a profile of one process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.errors import InvalidInput
from scavenger.cli.options import expand_counts
from scavenger.cli.output import (
    Cell,
    OutputFormat,
    ResponsiveTable,
    Terminal,
    format_seconds,
    number_column,
    pluralize,
    render_facts,
    text_column,
    word_column,
)
from scavenger.errors import DocumentProblem, NothingFeasible
from scavenger.measurement.layout_profile import LAYOUT_PROFILE, LayoutProfile
from scavenger.models.layout_time import LayoutForecast
from scavenger.planning.layouts import (
    GIB,
    LayoutPlan,
    PipelineForecast,
    forecast_layouts,
    forecast_pipelines,
)

LAYOUT_COLUMNS = (
    word_column("LAYOUT"),
    number_column("PROCESSES"),
    number_column("K"),
    number_column("ITERATION"),
    number_column("SAMPLES/S"),
    number_column("MEMORY"),
    text_column("BLOCKS OF STAGES", 2),
)


def plan_layouts(
    terminal: Terminal, file: Path, processes: str | None, batch: int | None, output: OutputFormat
) -> None:
    """Print the layouts of a profile; needs no controller."""
    if processes is None or batch is None:
        missing = "--processes" if processes is None else "--batch"
        raise typer.BadParameter(
            f"--layouts needs {missing}: write e.g. --processes 1..8 --batch 64"
        )
    counts, profile = expand_counts(processes), read_profile(file)
    made = forecast_layouts(profile, counts, batch)
    pipelines = forecast_pipelines(profile, counts, batch)
    rows = [layout_document(each, profile) for each in made.forecasts]
    refused = [{"layout": str(layout), "why": why} for layout, why in made.refused.items()]
    document = {
        "conclusion": made.conclusion,
        "layouts": rows,
        "pipelines": [pipeline_document(each) for each in pipelines],
        "refused": refused,
    }
    names = [str(each.layout) for each in made.forecasts]
    terminal.print_document(document, output, render_layouts(made, pipelines, profile), names)
    if not made.forecasts:
        raise NothingFeasible(made.conclusion)


def read_profile(file: Path) -> LayoutProfile:
    """Read a profile of a model in JSON.

    Raises:
        InvalidInput: Every field that is missing, unknown or out of range.
    """
    try:
        return LAYOUT_PROFILE.validate_json(file.read_bytes())
    except OSError as error:
        raise InvalidInput(str(file), [DocumentProblem("", f"{error.strerror}")]) from error
    except ValidationError as error:
        problems = [_problem(each) for each in error.errors()]
        raise InvalidInput(str(file), problems) from error


def _problem(error: ErrorDetails) -> DocumentProblem:
    path = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]
    ).removeprefix(".")
    return DocumentProblem(path, error["msg"].removeprefix("Value error, "))


def layout_document(forecast: LayoutForecast, profile: LayoutProfile) -> dict[str, object]:
    """Return a forecast as JSON values."""
    layout = forecast.layout
    return {
        "pipeline": layout.pipeline,
        "tensor": layout.tensor,
        "shard": layout.shard,
        "micro_batches": layout.micro_batches,
        "processes": forecast.processes,
        "workers": forecast.workers,
        "global_batch": forecast.global_batch,
        "seconds": forecast.seconds,
        "seconds_low": forecast.seconds_low,
        "seconds_high": forecast.seconds_high,
        "samples_per_second": forecast.samples_per_second,
        "stages": [
            {
                "first_block": profile.blocks[stage.first].name,
                "last_block": profile.blocks[stage.last].name,
                "seconds": stage.seconds,
                "memory_bytes": stage.memory_bytes,
            }
            for stage in forecast.stages
        ],
    }


def pipeline_document(forecast: PipelineForecast) -> dict[str, object]:
    """Return an asynchronous pipeline as JSON values."""
    return {
        "stages": list(forecast.layout.replicas),
        "cuts": list(forecast.layout.cuts),
        "seconds": forecast.partition.seconds,
        "speedup": forecast.speedup,
    }


def render_layouts(
    made: LayoutPlan, pipelines: Sequence[PipelineForecast], profile: LayoutProfile
) -> RenderableType:
    """Render the layouts from fast to slow, and why others are not among them."""
    facts = [*_facts(made), *(("pipedream", describe_pipeline(each)) for each in pipelines)]
    notes: list[RenderableType] = [Text(), render_facts(facts)]
    if not made.forecasts:
        return Group(*notes[1:])
    rows = [_layout_row(each, profile) for each in made.forecasts]
    return Group(ResponsiveTable(LAYOUT_COLUMNS, rows), *notes)


def describe_pipeline(forecast: PipelineForecast) -> str:
    """Say what an asynchronous pipeline would do, and how to ask for it.

    >>> from scavenger.layout import Layout
    >>> from scavenger.models.partition import Partition, Stage
    >>> partition = Partition((Stage(0, 2, 2, 2, 0.0), Stage(3, 4, 1, 1, 0.0)), 0.05)
    >>> layout = Layout(2, replicas=(2, 1), cuts=("layers.3",))
    >>> describe_pipeline(PipelineForecast(partition, layout, 2.5))
    '2-1 ends a minibatch every 50ms, 2.5 times one process: {stages: [2, 1], cuts: ["layers.3"]}'
    """
    layout = forecast.layout
    return (
        f"{forecast.partition.shape} ends a minibatch every "
        f"{format_seconds(forecast.partition.seconds)}, {forecast.speedup:.3g} times one process: "
        f"{{stages: {list(layout.replicas)}, cuts: {json.dumps(layout.cuts)}}}"
    )


def _facts(made: LayoutPlan) -> list[tuple[str, str]]:
    left_out = pluralize(made.dominated, "slower choice")
    dominated = (
        [("left out", f"{left_out}, on as many processes or more")] if made.dominated else []
    )
    reasons: dict[str, list[str]] = {}
    for layout, why in made.refused.items():
        reasons.setdefault(why, []).append(str(layout))
    refused = [("refused", f"{', '.join(names)}: {why}") for why, names in reasons.items()]
    return [("choice", made.conclusion), *dominated, *refused]


def _layout_row(forecast: LayoutForecast, profile: LayoutProfile) -> tuple[Cell, ...]:
    low, high = format_seconds(forecast.seconds_low), format_seconds(forecast.seconds_high)
    spread = "" if low == high else f" ({low}–{high})"
    stages = [
        profile.blocks[stage.first].name
        if stage.first == stage.last
        else f"{profile.blocks[stage.first].name}..{profile.blocks[stage.last].name}"
        for stage in forecast.stages
    ]
    return (
        str(forecast.layout),
        str(forecast.processes),
        str(forecast.workers),
        f"{format_seconds(forecast.seconds)}{spread}",
        f"{forecast.samples_per_second:.4g}",
        f"{forecast.memory_bytes / GIB:.3g} GiB",
        " | ".join(stages) if len(stages) > 1 else "all",
    )
