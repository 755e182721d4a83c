"""Reads price tables for ``scavenger prices import``: what each cloud rents out, and for how much.

The table that is shipped with the controller has the same columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation

from pydantic import ValidationError

from scavenger.errors import DocumentProblem, InvalidDocument
from scavenger.job.messages import clip_text, show_value
from scavenger.offline.tables.csv_reader import CsvReader, CsvRow, InvalidCell
from scavenger.schemas.prices import PriceRow

REQUIRED_PRICE_COLUMNS = ("provider", "region", "item", "price")
OPTIONAL_PRICE_COLUMNS = (
    "unit",
    "market",
    "vcpus",
    "memory_gib",
    "accelerator",
    "accelerators",
    "as_of",
    "source_page",
)


def read_price_rows(lines: Iterable[str]) -> tuple[PriceRow, ...]:
    """Read a price table; which prices are plausible, the controller judges.

    Raises:
        InvalidDocument: Up to ten problems, with line and column.
    """
    reader = CsvReader(lines)
    _refuse_columns(reader)
    rows: list[PriceRow] = []
    reader.read(lambda row: rows.append(_price_row(row)))
    return tuple(rows)


def _refuse_columns(reader: CsvReader) -> None:
    known = (*REQUIRED_PRICE_COLUMNS, *OPTIONAL_PRICE_COLUMNS)
    missing = [name for name in REQUIRED_PRICE_COLUMNS if name not in reader.columns]
    unknown = [name for name in reader.columns if name not in known]
    faults = [f"column {name} is missing: add it" for name in missing]
    faults += [
        f'unknown column "{clip_text(name)}": known are {", ".join(known)}' for name in unknown
    ]
    if faults:
        problems = [DocumentProblem("", fault, reader.header_line, 1) for fault in faults]
        raise InvalidDocument(problems)


def _price_row(row: CsvRow) -> PriceRow:
    """Return a row, with what its cells leave out as it is usually meant.

    Raises:
        InvalidCell: A cell cannot be used.
    """
    cells = {
        "provider": row.text("provider"),
        "region": row.text("region"),
        "item": row.text("item"),
        "unit": row.text("unit") or "machine_hour",
        "market": row.text("market") or "on_demand",
        "price": _decimal(row, "price"),
        "vcpus": row.optional_not_negative("vcpus"),
        "memory_gib": row.optional_not_negative("memory_gib"),
        "accelerator": row.text("accelerator"),
        "accelerators": row.whole("accelerators") if row.text("accelerators") else 0,
        "as_of": _moment(row, "as_of"),
    }
    try:
        return PriceRow.model_validate(cells)
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        column = str(first["loc"][0]) if first["loc"] else ""
        message = f"{show_value(first['input'])} cannot be used: {first['msg']}"
        raise InvalidCell(column, message) from None


def _decimal(row: CsvRow, column: str) -> Decimal:
    text = row.text(column)
    try:
        return Decimal(text)
    except InvalidOperation:
        raise InvalidCell(
            column, f"{show_value(text)} is no price: write dollars such as 0.2016"
        ) from None


def _moment(row: CsvRow, column: str) -> datetime | None:
    text = row.text(column)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidCell(
            column, f"{show_value(text)} is no date: write one such as 2026-01-31"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
