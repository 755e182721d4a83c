"""Terminal output: the terminal of a command, tables that fit its width, and formatting of values.

Results go to standard output, messages to standard error, so that a pipe receives results only.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from scavenger import money
from scavenger.cli.help import PipeConsole
from scavenger.job.fields import format_duration
from scavenger.schemas.base import MoneyView, View
from scavenger.schemas.curves import PointView, point_id
from scavenger.schemas.jobs import ConfigView
from scavenger.stack import EAGER_NAME

if TYPE_CHECKING:
    from scavenger.client.client import Client


class OutputFormat(StrEnum):
    """Format of results."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where a command prints, and how it reaches the controller.

    Attributes:
        stdout: Prints results.
        stderr: Prints messages.
        connect: Opens a client; raises ClientError where no controller or token is known.
        pause: Sleeps for a number of seconds.
    """

    stdout: Console
    stderr: Console
    connect: Callable[[], Client]
    pause: Callable[[float], None] = time.sleep

    @property
    def can_redraw(self) -> bool:
        """Whether standard output is a terminal that can redraw a view."""
        return self.stdout.is_terminal and not self.stdout.is_dumb_terminal

    @property
    def is_interactive(self) -> bool:
        """Whether a user can see a question and answer it."""
        return self.stderr.is_terminal and sys.stdin.isatty()

    def print_result(self, view: View, output_format: OutputFormat, table: RenderableType) -> None:
        """Print a view as a document or as names, or the table that was rendered from it."""
        document = view.model_dump(mode="json")
        self.print_document(document, output_format, table, names_of(view))

    def print_document(
        self,
        document: Mapping[str, object],
        output_format: OutputFormat,
        table: RenderableType,
        names: Iterable[str],
    ) -> None:
        """Print JSON values, or the table or the names that stand for them."""
        match output_format:
            case OutputFormat.JSON:
                self.write_line(dump_json(document))
            case OutputFormat.YAML:
                self.write_line(dump_yaml(document))
            case OutputFormat.NAME:
                for name in names:
                    self.write_line(name)
            case OutputFormat.TABLE:
                self.stdout.print(table)

    def write_update(self, view: View, output_format: OutputFormat) -> None:
        """Write one of several views: a line of JSON, a document of YAML, or a name."""
        match output_format:
            case OutputFormat.YAML:
                self.write_line(f"---\n{dump_yaml(view.model_dump(mode='json'))}")
            case OutputFormat.NAME:
                self.write_line(" ".join(names_of(view)))
            case OutputFormat.JSON | OutputFormat.TABLE:
                self.write_line(view.model_dump_json())

    def write_line(self, text: str) -> None:
        """Write a line for programs: unlike ``print``, this does not wrap it to the terminal."""
        self.stdout.file.write(f"{text}\n")
        # A pipe buffers: without this, `watch -o json` would show its lines too late.
        self.stdout.file.flush()

    def print_message(self, message: RenderableType, style: str = "") -> None:
        """Print a message to standard error; a string is printed literally."""
        shown = plain_text(message, style) if isinstance(message, str) else message
        self.stderr.print(shown)


def open_terminal(url: str | None, token: str | None) -> Terminal:
    """Return the terminal of this process. It looks the profile up when a command connects."""

    def connect() -> Client:
        # Imported late: a command that asks no controller starts sooner without it.
        from scavenger.client.client import Client

        return Client(url, token)

    return Terminal(open_console(), open_console(is_stderr=True), connect)


def open_console(*, is_stderr: bool = False) -> Console:
    """Return a console that prints text literally: no markup, no emoji codes, no highlighting."""
    return PipeConsole(stderr=is_stderr, markup=False, emoji=False, highlight=False)


def get_terminal(context: typer.Context) -> Terminal:
    """Return the terminal of a command; tests put another one into the context."""
    terminal = context.obj
    assert isinstance(terminal, Terminal)
    return terminal


def dump_json(document: object) -> str:
    """Write a document for programs; a number that is not finite is a bug, since JSON has none."""
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)


def dump_yaml(document: object) -> str:
    """Write JSON values as YAML, in their order."""
    import yaml

    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    return text.rstrip("\n")


# The first of these that a view has is what other commands know it by.
NAMING_FIELDS = (
    "id", "number", "sequence", "signature", "key", "machine_type", "item", "machine", "name",
)  # fmt: skip


def names_of(view: View) -> list[str]:
    """Return what a view is known by, or what the items of its first list are known by.

    >>> names_of(ConfigView(workers=4, global_batch=256))
    ['k4-b256']
    """
    fields = type(view).model_fields
    if "workers" in fields and "global_batch" in fields and "id" not in fields:
        workers, batch = (int(getattr(view, name)) for name in ("workers", "global_batch"))
        return [point_id(workers, batch, getattr(view, "stack", EAGER_NAME))]
    named = next((name for name in NAMING_FIELDS if name in fields), None)
    if named is not None:
        return [str(getattr(view, named))]
    for name in fields:
        value = getattr(view, name)
        if isinstance(value, list) and all(isinstance(item, View) for item in value):
            return [known for item in value for known in names_of(item)]
    return [str(getattr(view, name)) for name in fields][:1]


Cell = str | Text
WIDEST_LETTER = 2  # cells that a letter may take; a narrower column cannot show it


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        title: Its heading.
        drop_order: A narrow terminal drops the largest number first; 0 is never dropped.
        justify: Alignment of the cells; numbers stand on the right.
        min_width: Width to which texts wrap before a column is dropped; None for no wrapping.
    """

    title: str
    drop_order: int = 0
    justify: Literal["left", "right"] = "left"
    min_width: int | None = None


def long_name_column(title: str) -> Column:
    """Return a column of names that may be long: they wrap, so that other columns fit."""
    return Column(title, min_width=24)


def number_column(title: str, drop_order: int = 0) -> Column:
    """Return a column of numbers; without an order they identify a row, such as K and B."""
    return Column(title, drop_order, "right")


def word_column(title: str, drop_order: int = 0) -> Column:
    """Return a column of short words; without an order they identify a row, such as ids."""
    return Column(title, drop_order)


def text_column(title: str, drop_order: int) -> Column:
    """Return a column of texts that wrap, such as sentences."""
    return Column(title, drop_order, min_width=16)


@dataclass(frozen=True, slots=True)
class ResponsiveTable:
    """A table that drops its least important columns where the terminal is narrow.

    Attributes:
        columns: Every column.
        rows: Cells of each row, in the order of the columns.
        gap: Spaces between two columns.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    gap: int = 2

    def fit(self, width: int) -> dict[int, int]:
        """Return the columns that fit a width, by position, and the width that each gets.

        Columns that identify a row stay even where they do not fit.
        """
        natural = [self._natural(place) for place in range(len(self.columns))]
        least = [minimum_width(c, natural[place]) for place, c in enumerate(self.columns)]
        kept = list(range(len(self.columns)))
        while (spare := width - self.gap * (len(kept) - 1) - sum(least[p] for p in kept)) < 0:
            # Of columns that are equally important, the rightmost is dropped.
            leaving = max(reversed(kept), key=lambda place: self.columns[place].drop_order)
            if self.columns[leaving].drop_order == 0:
                break
            kept.remove(leaving)
        return distribute_width({p: least[p] for p in kept}, natural, spare)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Render the columns that fit, and list the others."""
        widths = self.fit(options.max_width)
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, self.gap, 0, 0))
        for place, width in widths.items():
            column = self.columns[place]
            table.add_column(column.title, justify=column.justify, overflow="fold", width=width)
        for row in self.rows:
            table.add_row(*(row[place] for place in widths))
        yield table
        missing = [c.title for place, c in enumerate(self.columns) if place not in widths]
        if titles := ", ".join(title for title in missing if title):
            yield Text(f"· a wider terminal shows more: {titles}", "dim")

    def _natural(self, place: int) -> int:
        cells = [self.columns[place].title, *(row[place] for row in self.rows)]
        texts = (cell.plain if isinstance(cell, Text) else cell for cell in cells)
        return max(cell_len(line) for text in texts for line in (text.splitlines() or [""]))


def minimum_width(column: Column, natural: int) -> int:
    """Return the width that a column needs at least, given the width of its widest cell."""
    if column.min_width is None:
        return natural
    return min(natural, max(column.min_width, cell_len(column.title), WIDEST_LETTER))


def distribute_width(
    widths: Mapping[int, int], natural: Sequence[int], spare: int
) -> dict[int, int]:
    """Distribute spare width evenly among the columns that wrap.

    >>> distribute_width({0: 1, 1: 1}, [3, 9], 6)
    {0: 3, 1: 5}
    """
    given = dict(widths)
    while spare > 0 and (wanting := [p for p in given if given[p] < natural[p]]):
        for place in wanting:
            more = min(max(spare // len(wanting), 1), natural[place] - given[place], spare)
            given[place] += more
            spare -= more
    return given


def render_facts(facts: Iterable[tuple[str, str]]) -> RenderableType:
    """Render facts with their labels, one per line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, fact in facts:
        grid.add_row(f"  {label}", plain_text(fact))
    return grid


UNKNOWN_VALUE = "–"
_SECONDS_WITH_UNIT = re.compile(r"(?P<figure>[0-9.]+)(?P<unit>ms|s)")


def format_number(value: float | None) -> str:
    """Write a number with three significant digits.

    >>> [format_number(value) for value in (0.98765, 12.0, 1234.5, None)]
    ['0.988', '12', '1,234', '–']
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN_VALUE
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def format_seconds(seconds: float | None) -> str:
    """Write seconds in a readable unit.

    >>> [format_seconds(seconds) for seconds in (0.25, 43.21, 300, None)]
    ['250ms', '43.2s', '5m00s', '–']
    """
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return UNKNOWN_VALUE
    return format_duration(seconds)


def format_milliseconds(seconds: float | None) -> str:
    """Write seconds as milliseconds, such as the time of an iteration.

    >>> format_milliseconds(0.01234)
    '12.3 ms'
    """
    return UNKNOWN_VALUE if seconds is None else f"{format_number(seconds * 1000)} ms"


def format_dollars(amount: float | None) -> str:
    """Write dollars, or that they are not known.

    >>> [format_dollars(amount) for amount in (3.4, 0.00123456, 0.0, None)]
    ['$3.40', '$0.00123', '$0.00', '–']
    """
    if amount is None or not math.isfinite(amount):
        return UNKNOWN_VALUE
    return money.format_dollars(amount)


def format_amount(value: MoneyView | None) -> str:
    """Write an amount of money in its currency.

    >>> format_amount(MoneyView(amount="0.5"))
    '$0.50'
    """
    return UNKNOWN_VALUE if value is None else str(value)


def format_config(config: ConfigView | PointView | None) -> str:
    """Write a configuration.

    >>> format_config(ConfigView(workers=4, global_batch=256))
    'K=4 B=256'
    """
    return UNKNOWN_VALUE if config is None else str(config.config)


def format_time_to_target(seconds: float, basis: str) -> str:
    """Write a time of a curve; a relative curve has multiples of the start's time.

    >>> [format_time_to_target(0.5, basis) for basis in ("total", "relative")]
    ['500ms', '×0.5']
    """
    return f"×{format_number(seconds)}" if basis == "relative" else format_seconds(seconds)


def format_time_interval(low: float, seconds: float, high: float, basis: str) -> str:
    """Write a time of a curve with its interval, if it has one.

    >>> format_time_interval(39.04, 43.21, 47.8, "total")
    '43.2s (39.0–47.8)'
    >>> format_time_interval(0.9, 1.0, 1.1, "relative")
    '×1 (0.9–1.1)'
    >>> format_time_interval(280.0, 300.0, 320.0, "total")
    '5m00s (4m40s–5m20s)'
    >>> format_time_interval(2.0, 2.0, 2.0, "total")
    '2.0s'
    """
    middle, *ends = (format_time_to_target(value, basis) for value in (seconds, low, high))
    if ends[0] == ends[1]:
        return middle
    # "43.2s (39.0–47.8)": the ends drop a unit that all three share.
    shorter = [_SECONDS_WITH_UNIT.fullmatch(end) for end in (middle, *ends)]
    if all(shorter) and len({found["unit"] for found in shorter if found}) == 1:
        ends = [found["figure"] for found in shorter[1:] if found]
    return f"{middle} ({ends[0].removeprefix('×')}–{ends[1].removeprefix('×')})"


def format_cost_to_target(amount: float, basis: str) -> str:
    """Write a cost of a curve; a relative curve has multiples of the start's cost."""
    return f"×{format_number(amount)}" if basis == "relative" else format_dollars(amount)


LEAST_SHARE = 5e-5  # what is less is rounding, such as the error of a fit through its points


def format_percent(share: float) -> str:
    """Write a share in percent.

    >>> format_percent(0.643), format_percent(0.02453), format_percent(1.3e-16)
    ('64 %', '2.5 %', '0 %')
    """
    if abs(share) < LEAST_SHARE:
        return "0 %"
    return f"{100 * share:.0f} %" if abs(share) >= 0.1 else f"{100 * share:.2g} %"


def format_change(share: float) -> str:
    """Write a relative change or error with its sign.

    >>> format_change(0.0123), format_change(-0.2)
    ('+1.2 %', '-20.0 %')
    """
    return f"{100 * share:+.1f} %"


def pluralize(count: int, thing: str) -> str:
    """Write a count with its noun.

    >>> [pluralize(count, "probe") for count in (0, 1, 2)]
    ['0 probes', '1 probe', '2 probes']
    """
    return f"{count} {thing}{'' if count == 1 else 's'}"


def draw_bar(share: float, width: int) -> str:
    """Draw a share as a bar.

    >>> draw_bar(0.5, 4)
    '██░░'
    """
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)


def plain_text(text: str, style: str = "") -> Text:
    r"""Return text literally: markup stays visible, and control characters are escaped.

    Names, reasons and log lines come from users and scripts: they must not steer a terminal.

    >>> plain_text("[red]\x1b[2J").plain
    '[red]\\x1b[2J'
    """
    return Text("".join(map(_visible, text.expandtabs(4))), style)


def _visible(character: str) -> str:
    if character == "\n" or character.isprintable():
        return character
    return character.encode("unicode_escape", "backslashreplace").decode()
