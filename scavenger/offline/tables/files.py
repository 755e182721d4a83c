"""Reads files of measurements and of prices; the columns of a file tell which kind it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from scavenger.errors import DocumentProblem, InvalidDocument
from scavenger.job.messages import clip_text
from scavenger.offline.tables.csv_reader import CsvReader, CsvRow, InvalidCell
from scavenger.offline.tables.runs import (
    EPOCHS_TABLE_COLUMNS,
    NOISE_TABLE_COLUMNS,
    OPTIONAL_EPOCHS_TABLE_COLUMNS,
    OPTIONAL_NOISE_TABLE_COLUMNS,
    EpochsTable,
    EpochsTableBuilder,
    NoiseTable,
    NoiseTableBuilder,
)
from scavenger.offline.tables.steps import (
    OPTIONAL_STEP_TABLE_COLUMNS,
    STEP_TABLE_COLUMNS,
    StepTable,
    StepTableBuilder,
)

PRICE_LIST_COLUMNS = ("item", "usd_per_hour")
OPTIONAL_PRICE_LIST_COLUMNS = ("cloud", "region")
MAX_LISTED_PRICES = 200_000


@dataclass(frozen=True, slots=True, order=True)
class ListedPrice:
    """What one thing costs in one region.

    Attributes:
        cloud: Who rents it out; empty where the file does not say.
        item: Name of the machine type.
        region: Where; empty where the file does not say.
        price_per_hour: Dollars per hour; 0 where it is not offered.
    """

    cloud: str
    item: str
    region: str
    price_per_hour: float

    @property
    def key(self) -> str:
        """Name and region, as machine types are named elsewhere."""
        return f"{self.item}@{self.region}" if self.region else self.item


class PriceListBuilder:
    """Gathers rows into a list of prices."""

    def __init__(self) -> None:
        """Start without rows."""
        self._prices: list[ListedPrice] = []

    def add_row(self, row: CsvRow) -> None:
        """Add one row.

        Raises:
            InvalidCell: It cannot be used.
        """
        if not row.text("item"):
            raise InvalidCell("item", "is empty: write the machine type")
        price = row.optional_not_negative("usd_per_hour")
        if price is None:
            raise InvalidCell("usd_per_hour", "is empty: write dollars per hour, 0 if not offered")
        names = (row.text("cloud"), row.text("item"), row.text("region"))
        self._prices.append(ListedPrice(*names, price))
        if len(self._prices) > MAX_LISTED_PRICES:
            message = f"more than {MAX_LISTED_PRICES:,} prices: keep the ones in question"
            raise InvalidCell("item", message)

    def prices(self) -> tuple[ListedPrice, ...]:
        """Return the prices in the order of the rows."""
        return tuple(self._prices)


TableKind = Literal["steps", "noise", "epochs", "prices"]


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of one kind of file."""

    required: tuple[str, ...]
    optional: tuple[str, ...]


# The first kind whose columns are all there is the kind of a file.
TABLE_KINDS: dict[TableKind, TableColumns] = {
    "steps": TableColumns(STEP_TABLE_COLUMNS, OPTIONAL_STEP_TABLE_COLUMNS),
    "noise": TableColumns(NOISE_TABLE_COLUMNS, OPTIONAL_NOISE_TABLE_COLUMNS),
    "epochs": TableColumns(EPOCHS_TABLE_COLUMNS, OPTIONAL_EPOCHS_TABLE_COLUMNS),
    "prices": TableColumns(PRICE_LIST_COLUMNS, OPTIONAL_PRICE_LIST_COLUMNS),
}


@dataclass(frozen=True, slots=True)
class MeasurementTables:
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


def combine_tables(several: Iterable[MeasurementTables]) -> MeasurementTables:
    """Put the tables of several files together."""
    listed = list(several)
    return MeasurementTables(
        steps=tuple(table for each in listed for table in each.steps),
        epochs=tuple(table for each in listed for table in each.epochs),
        noise=tuple(table for each in listed for table in each.noise),
        prices=tuple(price for each in listed for price in each.prices),
        ignored=tuple(dict.fromkeys(column for each in listed for column in each.ignored)),
    )


def read_tables(lines: Iterable[str], name: str) -> MeasurementTables:
    """Read one file of measurements.

    Args:
        lines: Its lines.
        name: What tables are called whose rows do not say.

    Raises:
        InvalidDocument: It cannot be used: up to ten problems with line, column and remedy.
    """
    sheet = CsvReader(lines)
    kind = table_kind_of(sheet)
    known = TABLE_KINDS[kind].required + TABLE_KINDS[kind].optional
    ignored = tuple(column for column in sheet.columns if column not in known)
    match kind:
        case "steps":
            steps = StepTableBuilder(name)
            sheet.read(steps.add_row)
            return MeasurementTables(steps=steps.tables(), ignored=ignored)
        case "epochs":
            epochs = EpochsTableBuilder(name)
            sheet.read(epochs.add_row)
            return MeasurementTables(epochs=epochs.tables(), ignored=ignored)
        case "noise":
            noise = NoiseTableBuilder(name)
            sheet.read(noise.add_row)
            return MeasurementTables(noise=noise.tables(), ignored=ignored)
        case "prices":
            prices = PriceListBuilder()
            sheet.read(prices.add_row)
            return MeasurementTables(prices=prices.prices(), ignored=ignored)


def table_kind_of(sheet: CsvReader) -> TableKind:
    """Tell a file by its columns.

    Raises:
        InvalidDocument: It is of no kind; each missing column of the nearest kind is named.
    """
    for kind, columns in TABLE_KINDS.items():
        if set(columns.required) <= set(sheet.columns):
            return kind
    kind = max(TABLE_KINDS, key=lambda kind: header_similarity(TABLE_KINDS[kind], sheet.columns))
    missing = [column for column in TABLE_KINDS[kind].required if column not in sheet.columns]
    known = TABLE_KINDS[kind].required + TABLE_KINDS[kind].optional
    spare = [column for column in sheet.columns if column not in known]
    raise InvalidDocument([missing_column(kind, column, spare, sheet) for column in missing])


def header_similarity(columns: TableColumns, found: Sequence[str]) -> float:
    """Say how much a header looks like that of a kind: columns that are there or nearly so."""
    score = 0.0
    for column in columns.required:
        if column in found:
            score += 1
        elif get_close_matches(column, found, n=1):
            score += 0.7
    return score / len(columns.required) + 0.01 * sum(c in found for c in columns.optional)


def missing_column(
    kind: TableKind, column: str, spare: Sequence[str], sheet: CsvReader
) -> DocumentProblem:
    """Say that a column is missing, and which one was probably meant."""
    close = get_close_matches(column, spare, n=1)
    place = sheet.character_column(sheet.columns.index(close[0])) if close else 1
    if close:
        remedy = f'rename "{clip_text(close[0])}"'
    else:
        required, optional = TABLE_KINDS[kind].required, TABLE_KINDS[kind].optional
        remedy = f"a table of {kind} has {', '.join(required)}, and may have {', '.join(optional)}"
    return DocumentProblem(column, f"column is missing: {remedy}", sheet.header_line, place)
