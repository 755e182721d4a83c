"""From options as people write them, and files beside the table, to a FitRequest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import typer

from scavenger.cli.errors import NoSuchTable
from scavenger.cli.option import read_counts
from scavenger.cli.table_file import matching
from scavenger.fit.request import FitRequest
from scavenger.models.epochs import EpochsSeen, Laws
from scavenger.models.form import Topology
from scavenger.objective import Cheapest, Fastest, Knee, Objective, Weighted, Within
from scavenger.quantity import Bounds, read_duration, read_money, read_price
from scavenger.section import nearest
from scavenger.tables.kinship import nearest_ancestor
from scavenger.tables.metric_target import target_of
from scavenger.tables.price_table import ListedPrice
from scavenger.tables.step_table import StepTable
from scavenger.tables.tables import Tables


@dataclass(frozen=True, slots=True)
class Asked:
    """Options as they were written; None where one was left out."""

    objective: str
    time_weight: float
    price: str | None
    max_cost: str | None
    max_time: str | None
    dataset_size: int | None
    epochs: float | None
    at_batch: int | None
    topology: Topology | None
    laws: Laws
    workers: str | None
    batch: str | None
    noise_scale: float | None


def pick_table(tables: Tables, pattern: str | None) -> StepTable:
    """Return the only table of seconds, or the one that is named.

    Raises:
        NoSuchTable: There is none by this name, or several, or none at all.
    """
    if not tables.steps:
        raise NoSuchTable("No file holds seconds per iteration: a column step_time is needed", ())
    found = matching([table.name for table in tables.steps], pattern)
    if len(found) > 1:
        meant = f"{pattern} means" if pattern else "There are"
        raise NoSuchTable(f"{meant} {len(found)} tables, and a fit is of one", found)
    return next(table for table in tables.steps if table.name == found[0])


def request_of(asked: Asked, tables: Tables, steps: StepTable) -> FitRequest:
    """Return what is asked of a table.

    Raises:
        typer.BadParameter: An option cannot be used; the message says what to write.
        NoSuchTable: None of several tables of epochs belongs to the table.
    """
    epochs = asked.epochs
    if epochs is not None and not (math.isfinite(epochs) and epochs > 0):
        raise typer.BadParameter(f"{epochs:g} must be above 0", param_hint="--epochs")
    if epochs is not None and asked.at_batch is None:
        message = "needs --at-batch: epochs depend on the batch, so say which one"
        raise typer.BadParameter(message, param_hint="--epochs")
    if asked.max_cost is not None and asked.price is None:
        message = "needs --price: dollars cannot be counted without one"
        raise typer.BadParameter(message, param_hint="--max-cost")
    return FitRequest(
        objective=objective_of(asked),
        price_per_hour=price_of(asked.price, tables.prices),
        dataset_size=asked.dataset_size,
        epochs=epochs,
        at_batch=asked.at_batch,
        runs=runs_of(tables, steps),
        noise_scale=asked.noise_scale,
        topology=asked.topology,
        laws=asked.laws,
        workers=every_count(asked.workers),
        global_batches=doublings(asked.batch),
    )


def objective_of(asked: Asked) -> Objective:
    """Return the objective, within its limits if there are some."""
    objectives: dict[str, Objective] = {
        "knee": Knee(),
        "fastest": Fastest(),
        "cheapest": Cheapest(),
        "weighted": Weighted(asked.time_weight),
    }
    objective = objectives[asked.objective]
    cost = read_option("--max-cost", lambda text: float(read_money(text)), asked.max_cost)
    time = read_option("--max-time", read_duration, asked.max_time)
    if cost is None and time is None:
        return objective
    if cost is not None and cost <= 0:
        raise typer.BadParameter("must be above 0 USD", param_hint="--max-cost")
    return Within(objective, max_cost=cost, max_time=time)


def read_option(name: str, read: Callable[[str], float], text: str | None) -> float | None:
    """Read an option's text; None where it was left out."""
    if text is None:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None


def price_of(text: str | None, prices: tuple[ListedPrice, ...]) -> float | None:
    """Return dollars per machine-hour: as written, or of the machine that is named."""
    if text is None or not prices or " " in text:
        return read_option("--price", lambda text: float(read_price(text)), text)
    offered = {price.key: price.price_per_hour for price in prices if price.price_per_hour > 0}
    if text in offered:
        return offered[text]
    regions = sorted(key for key in offered if key.partition("@")[0] == text)
    close = regions[0] if regions else nearest(text, tuple(offered))
    hint = f": write e.g. {close}" if close else ""
    raise typer.BadParameter(f"the prices offer no {text}{hint}", param_hint="--price")


def runs_of(tables: Tables, steps: StepTable) -> tuple[EpochsSeen, ...]:
    """Return what finished runs of the table's job took; none where no file tells.

    Raises:
        NoSuchTable: None of several tables belongs to the table.
    """
    known = {table.name: table.runs for table in tables.epochs}
    for table in tables.noise:
        target = target_of(table)
        if target is not None:
            known.setdefault(table.name, target.runs)
    if len(known) == 1:
        return next(iter(known.values()))
    name = nearest_ancestor(steps.name, known)
    if known and name is None:
        what = f"No table of epochs is called {steps.name}, or like a folder above it"
        raise NoSuchTable(what, tuple(known))
    return known[name] if name is not None else ()


def every_count(text: str | None) -> tuple[int, ...]:
    """Return the worker counts of an option; a range means each of them."""
    counts = () if text is None else read_counts(text)
    return (
        tuple(range(max(counts.low, 1), counts.high + 1)) if isinstance(counts, Bounds) else counts
    )


def doublings(text: str | None) -> tuple[int, ...]:
    """Return the batches of an option; a range means its ends and the doublings between.

    >>> doublings("64..400")
    (64, 128, 256, 400)
    """
    batches = () if text is None else read_counts(text)
    if not isinstance(batches, Bounds):
        return batches
    low, high = max(batches.low, 1), batches.high
    between = (low << times for times in range(high.bit_length()))
    return (*(batch for batch in between if batch < high), high)
