"""``scavenger offers``: which machines the clouds of the controller rent out, cheapest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import RenderableType

from scavenger.cli.options import OutputOption
from scavenger.cli.output import (
    UNKNOWN_VALUE,
    Cell,
    OutputFormat,
    ResponsiveTable,
    format_number,
    get_terminal,
    long_name_column,
    number_column,
    plain_text,
    text_column,
    word_column,
)
from scavenger.cli.prices import render_age
from scavenger.money import format_rate
from scavenger.schemas.prices import OfferView


class OfferedMarket(StrEnum):
    """A market, as an option names it."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"


NEEDS_EXAMPLE = "vcpus=4,memory=16,accelerator=nvidia-l4"
NUMERIC_NEEDS = ("vcpus", "memory", "accelerators")

NeedsOption = Annotated[
    str | None,
    typer.Option(
        "--needs",
        metavar="NAME=VALUE,...",
        help="Only machines with at least so many vcpus, GiB of memory and accelerators, and with "
        f"this accelerator: {NEEDS_EXAMPLE}",
    ),
]
CloudOption = Annotated[
    str | None, typer.Option("--cloud", help="Only of this entry of the clouds file.")
]
MarketOption = Annotated[
    OfferedMarket | None, typer.Option("--market", help="Only of this market.")
]
OfferLimitOption = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of offers.")]


def offers(
    context: typer.Context,
    needs: NeedsOption = None,
    cloud: CloudOption = None,
    market: MarketOption = None,
    limit: OfferLimitOption = 20,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List machine types with a known price, in each zone and market, cheapest first."""
    terminal = get_terminal(context)
    wanted: dict[str, str | int] = dict(parse_needs(needs))
    if cloud is not None:
        wanted["cloud"] = cloud
    if market is not None:
        wanted["market"] = market.value
    with terminal.connect() as client:
        found = client.list_offers(limit, wanted)
    if found.offers or output is not OutputFormat.TABLE:
        terminal.print_result(found, output, render_offers(found.offers, datetime.now(UTC)))
    if not found.offers:
        none = (
            "No machine matches."
            if wanted
            else "The controller rents no machines of a known price."
        )
        terminal.print_message(f"{none} Next: scavenger prices, and docs/clouds.md names clouds")
    if found.next_cursor is not None:
        terminal.print_message(f"There are more: scavenger offers --limit {10 * limit}")


def parse_needs(text: str | None) -> dict[str, str]:
    """Read what a machine needs.

    Raises:
        typer.BadParameter: It names what offers do not have, or no number; the message says what
            to write.

    >>> parse_needs("vcpus=4, accelerator=nvidia-l4")
    {'vcpus': '4', 'accelerator': 'nvidia-l4'}
    """
    found: dict[str, str] = {}
    for part in (text or "").split(",") if text else ():
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in (*NUMERIC_NEEDS, "accelerator") or not value:
            raise typer.BadParameter(f"{part.strip()!r} is no need: write e.g. {NEEDS_EXAMPLE}")
        if name in NUMERIC_NEEDS and not value.replace(".", "", 1).isdecimal():
            raise typer.BadParameter(f"{name} must be a number, got {value!r}: write {name}=4")
        found[name] = value
    return found


OFFER_COLUMNS = (
    long_name_column("MACHINE"),
    word_column("CLOUD"),
    word_column("ZONE", 2),
    word_column("MARKET", 1),
    number_column("PRICE"),
    number_column("AGE", 4),
    number_column("VCPUS", 5),
    number_column("GiB", 6),
    word_column("ACCELERATOR", 7),
    text_column("SHORTAGE", 3),
)


def render_offers(found: Sequence[OfferView], now: datetime) -> RenderableType:
    """Render a table of offers."""
    return ResponsiveTable(OFFER_COLUMNS, [_offer_row(offer, now) for offer in found])


def _offer_row(offer: OfferView, now: datetime) -> tuple[Cell, ...]:
    most = "≤ " if offer.is_upper_bound else ""
    until = "" if offer.shortage_until is None else f"until {offer.shortage_until:%H:%M} UTC: "
    accelerators = f"{offer.accelerators} × {offer.accelerator}" if offer.accelerator else ""
    return (
        plain_text(offer.machine_type),
        plain_text(offer.cloud),
        plain_text(offer.zone or UNKNOWN_VALUE),
        offer.market,
        f"{most}{format_rate(float(offer.price_per_hour.amount))}",
        render_age(offer.as_of, now),
        format_number(offer.vcpus),
        format_number(offer.memory_gib),
        plain_text(accelerators),
        plain_text("" if offer.shortage is None else f"{until}{offer.shortage}"),
    )
