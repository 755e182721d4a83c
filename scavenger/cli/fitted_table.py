"""FittedTable: the table of every command, which knows what to leave out where there is no room.

Each column says how soon it leaves. What names a row never does: without it figures are of nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

Cell = str | Text


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        title: Its heading.
        leaves: How soon it leaves a narrow terminal, 1 last and the largest number first; 0 for
            what names the row and never leaves.
        justify: Where its cells stand; figures stand on the right.
        least: Characters a text is folded to before any column leaves; None for what is not folded.
    """

    title: str
    leaves: int = 0
    justify: Literal["left", "right"] = "left"
    least: int | None = None


def name(title: str) -> Column:
    """Return the column of short names or ids that tell one row from another."""
    return Column(title)


def long_name(title: str) -> Column:
    """Return the column of names that may be very long: those are folded, so that others fit."""
    return Column(title, least=24)


def key_figure(title: str) -> Column:
    """Return the column of figures that tell one row from another, such as K and B."""
    return Column(title, justify="right")


def figure(title: str, leaves: int) -> Column:
    """Return a column of figures."""
    return Column(title, leaves, "right")


def word(title: str, leaves: int) -> Column:
    """Return a column of short words."""
    return Column(title, leaves)


def folded(title: str, leaves: int) -> Column:
    """Return a column of texts that are folded, such as sentences."""
    return Column(title, leaves, least=16)


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table that shows what there is room for.

    Attributes:
        columns: Every column.
        rows: The cells of each row, one for each column.
        gap: Spaces between two columns.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    gap: int = 2

    def fit(self, width: int) -> dict[int, int]:
        """Return which columns fit a width, by their place, and the width that each gets.

        Those that name a row are among them even where they do not fit.
        """
        natural = [self._natural(place) for place in range(len(self.columns))]
        least = [least_of(c, natural[place]) for place, c in enumerate(self.columns)]
        kept = list(range(len(self.columns)))
        while (spare := width - self.gap * (len(kept) - 1) - sum(least[p] for p in kept)) < 0:
            leaving = max(reversed(kept), key=lambda place: self.columns[place].leaves)
            if self.columns[leaving].leaves == 0:
                break
            kept.remove(leaving)
        return share({p: least[p] for p in kept}, natural, spare)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Show the columns that fit, and name the others."""
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


def least_of(column: Column, natural: int) -> int:
    """Return the least width of a column whose widest cell has a width."""
    if column.least is None:
        return natural
    return min(natural, max(column.least, cell_len(column.title)))


def share(widths: Mapping[int, int], natural: Sequence[int], spare: int) -> dict[int, int]:
    """Share room that is left among the columns that are folded, evenly.

    >>> share({0: 1, 1: 1}, [3, 9], 6)
    {0: 3, 1: 5}
    """
    given = dict(widths)
    while spare > 0 and (wanting := [p for p in given if given[p] < natural[p]]):
        for place in wanting:
            more = min(max(spare // len(wanting), 1), natural[place] - given[place], spare)
            given[place] += more
            spare -= more
    return given
