"""``scavenger prices``: what the controller knows of the prices of clouds, and how to tell it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from scavenger.cli.errors import InvalidInput
from scavenger.cli.options import OutputOption
from scavenger.cli.output import (
    Cell,
    OutputFormat,
    ResponsiveTable,
    get_terminal,
    long_name_column,
    number_column,
    plain_text,
    pluralize,
    word_column,
)
from scavenger.errors import DocumentProblem, ExitCode, InvalidDocument
from scavenger.offline.tables.price_rows import read_price_rows
from scavenger.schemas.prices import PriceList, PriceRow, PriceUnit, PriceView

OLD_PRICE_AGE = timedelta(days=30)
UNIT_NAMES: dict[PriceUnit, str] = {
    "machine_hour": "/h",
    "vcpu_hour": "/vCPU/h",
    "gib_hour": "/GiB/h",
    "disk_gib_month": "/GiB/month",
    "address_hour": "/h",
}

PriceTableArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="CSV file with the columns provider, region, item and price (docs/clouds.md).",
    ),
]

price_commands = typer.Typer(invoke_without_command=True)


@price_commands.callback(epilog="Example: scavenger prices import prices.csv")
def list_prices(context: typer.Context, output: OutputOption = OutputFormat.TABLE) -> None:
    """List the prices that the controller plans with, each with its age and source."""
    if context.invoked_subcommand is not None:
        return
    terminal = get_terminal(context)
    with terminal.connect() as client:
        found = PriceList(prices=list(client.prices()))
    if found.prices or output is not OutputFormat.TABLE:
        now = datetime.now(UTC)
        terminal.print_result(found, output, render_prices(found.prices, now))
        if output is OutputFormat.TABLE and any(is_old(price.as_of, now) for price in found.prices):
            limit = f"▲ is older than {OLD_PRICE_AGE.days} days"
            terminal.print_message(f"{limit}. Next: scavenger prices import FILE")
    if not found.prices:
        terminal.print_message("No prices are known. Next: scavenger prices import FILE")


@price_commands.command("import", epilog="Example: scavenger prices import prices.csv")
def import_prices(
    context: typer.Context, file: PriceTableArgument, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Import a price table. Later jobs are planned with it; running ones keep their prices."""
    terminal = get_terminal(context)
    rows = read_price_file(file)
    with terminal.connect() as client:
        imported = client.import_prices(rows)
    summary = f"{pluralize(imported.accepted, 'price')} imported of {len(rows)}"
    terminal.print_result(imported, output, plain_text(summary))
    for why in imported.refused:
        terminal.print_message(f"not believed: {why}", "yellow")
    if imported.refused:
        raise typer.Exit(ExitCode.OTHER)


def read_price_file(file: Path) -> Sequence[PriceRow]:
    """Read a price table.

    Raises:
        InvalidInput: All problems of the file, with line and column.
    """
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            return read_price_rows(lines)
    except InvalidDocument as error:
        problems: Sequence[DocumentProblem] = error.problems
    except UnicodeDecodeError:
        problems = [DocumentProblem("", "is no UTF-8 text: save the table as CSV in UTF-8")]
    except OSError as error:
        problems = [DocumentProblem("", f"cannot be read: {error.strerror or error}")]
    raise InvalidInput(str(file), problems)


PRICE_COLUMNS = (
    long_name_column("ITEM"),
    word_column("PROVIDER"),
    word_column("REGION", 1),
    word_column("MARKET", 3),
    number_column("USD"),
    word_column("PER"),
    number_column("AGE", 2),
    word_column("SOURCE", 4),
)


def render_prices(prices: Sequence[PriceView], now: datetime) -> RenderableType:
    """Render a table of prices."""
    return ResponsiveTable(PRICE_COLUMNS, [_price_row(price, now) for price in prices])


def _price_row(price: PriceView, now: datetime) -> tuple[Cell, ...]:
    return (
        plain_text(price.item),
        plain_text(price.provider),
        plain_text(price.region),
        price.market,
        f"{price.price.normalize():f}",
        UNIT_NAMES[price.unit],
        render_age(price.as_of, now),
        price.source,
    )


def is_old(as_of: datetime, now: datetime) -> bool:
    """Tell whether a price should be looked up again."""
    return now - as_of > OLD_PRICE_AGE


def render_age(as_of: datetime, now: datetime) -> Cell:
    """Render how old a price is; one that is old is marked."""
    age = max(now - as_of, timedelta(0))
    words = f"{age.days} d" if age.days else f"{age.seconds // 3600} h"
    return plain_text(f"▲ {words}", "yellow") if is_old(as_of, now) else plain_text(words)
