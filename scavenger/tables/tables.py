"""Tables: what a file of measurements holds; its columns tell which kind it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from scavenger.document import legible
from scavenger.errors import InvalidDocument, Problem
from scavenger.tables import epochs_table, noise_table, price_table, step_table
from scavenger.tables.epochs_table import EpochsTable, EpochsTables
from scavenger.tables.noise_table import NoiseTable, NoiseTables
from scavenger.tables.price_table import ListedPrice, PriceTable
from scavenger.tables.sheet import Sheet
from scavenger.tables.step_table import StepTable, StepTables

Kind = Literal["steps", "noise", "epochs", "prices"]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one kind of file."""

    required: tuple[str, ...]
    optional: tuple[str, ...]


# The first kind whose columns are all there is the kind of a file.
KINDS: dict[Kind, Columns] = {
    "steps": Columns(step_table.REQUIRED, step_table.OPTIONAL),
    "noise": Columns(noise_table.REQUIRED, noise_table.OPTIONAL),
    "epochs": Columns(epochs_table.REQUIRED, epochs_table.OPTIONAL),
    "prices": Columns(price_table.REQUIRED, price_table.OPTIONAL),
}


@dataclass(frozen=True, slots=True)
class Tables:
    """What files of measurements hold.

    Attributes:
        steps: Seconds per iteration.
        epochs: Epochs to a target.
        noise: Gradients along runs.
        prices: Prices of machines.
        ignored: Columns that mean nothing here.
    """

    steps: tuple[StepTable, ...] = ()
    epochs: tuple[EpochsTable, ...] = ()
    noise: tuple[NoiseTable, ...] = ()
    prices: tuple[ListedPrice, ...] = ()
    ignored: tuple[str, ...] = ()


def gather(several: Iterable[Tables]) -> Tables:
    """Put the tables of several files together."""
    listed = list(several)
    return Tables(
        steps=tuple(table for each in listed for table in each.steps),
        epochs=tuple(table for each in listed for table in each.epochs),
        noise=tuple(table for each in listed for table in each.noise),
        prices=tuple(price for each in listed for price in each.prices),
        ignored=tuple(dict.fromkeys(column for each in listed for column in each.ignored)),
    )


def read_tables(lines: Iterable[str], name: str) -> Tables:
    """Read one file of measurements.

    Args:
        lines: Its lines.
        name: What tables are called whose rows do not say.

    Raises:
        InvalidDocument: It cannot be used: up to ten problems with line, column and remedy.
    """
    sheet = Sheet(lines)
    kind = kind_of(sheet)
    known = KINDS[kind].required + KINDS[kind].optional
    ignored = tuple(column for column in sheet.columns if column not in known)
    match kind:
        case "steps":
            steps = StepTables(name)
            sheet.read(steps.take)
            return Tables(steps=steps.tables(), ignored=ignored)
        case "epochs":
            epochs = EpochsTables(name)
            sheet.read(epochs.take)
            return Tables(epochs=epochs.tables(), ignored=ignored)
        case "noise":
            noise = NoiseTables(name)
            sheet.read(noise.take)
            return Tables(noise=noise.tables(), ignored=ignored)
        case "prices":
            prices = PriceTable()
            sheet.read(prices.take)
            return Tables(prices=prices.prices(), ignored=ignored)


def kind_of(sheet: Sheet) -> Kind:
    """Tell a file by its columns.

    Raises:
        InvalidDocument: It is of no kind; each missing column of the nearest kind is named.
    """
    for kind, columns in KINDS.items():
        if set(columns.required) <= set(sheet.columns):
            return kind
    kind = max(KINDS, key=lambda kind: likeness(KINDS[kind], sheet.columns))
    missing = [column for column in KINDS[kind].required if column not in sheet.columns]
    known = KINDS[kind].required + KINDS[kind].optional
    spare = [column for column in sheet.columns if column not in known]
    raise InvalidDocument([missing_column(kind, column, spare, sheet) for column in missing])


def likeness(columns: Columns, found: Sequence[str]) -> float:
    """Say how much a header looks like that of a kind: columns that are there or nearly so."""
    score = 0.0
    for column in columns.required:
        if column in found:
            score += 1
        elif get_close_matches(column, found, n=1):
            score += 0.7
    return score / len(columns.required) + 0.01 * sum(c in found for c in columns.optional)


def missing_column(kind: Kind, column: str, spare: Sequence[str], sheet: Sheet) -> Problem:
    """Say that a column is missing, and which one was probably meant."""
    close = get_close_matches(column, spare, n=1)
    place = sheet.column_of(sheet.columns.index(close[0])) if close else 1
    if close:
        remedy = f'rename "{legible(close[0])}"'
    else:
        required, optional = KINDS[kind].required, KINDS[kind].optional
        remedy = f"a table of {kind} has {', '.join(required)}, and may have {', '.join(optional)}"
    return Problem(column, f"column is missing: {remedy}", sheet.header_line, place)
