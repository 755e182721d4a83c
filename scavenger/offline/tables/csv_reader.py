"""Reads comma-separated text as a stream of rows, with line and column of each problem."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scavenger.errors import DocumentProblem, InvalidDocument
from scavenger.job.messages import clip_text, show_value

MAX_CSV_PROBLEMS = 10
MAX_CSV_ROWS = 2_000_000
# Larger whole numbers are no batch, and floats no longer hold each of them.
MAX_INTEGER = 2**53
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


class InvalidCell(ValueError):
    """A cell cannot be used; caught where its place is known.

    Attributes:
        column: Name of its column.
    """

    def __init__(self, column: str, message: str) -> None:
        self.column = column
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One row below the header.

    Attributes:
        cells: Its texts.
        places: Where in ``cells`` each column stands.
    """

    cells: Sequence[str]
    places: Mapping[str, int]

    def text(self, column: str) -> str:
        """Return a cell's text, empty where the column or the cell is missing."""
        place = self.places.get(column)
        return "" if place is None else self.cells[place].strip()

    def number(self, column: str) -> float:
        """Return a finite number.

        Raises:
            InvalidCell: It is missing, no number, or not finite.
        """
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise InvalidCell(column, _no_number(text)) from None
        if not math.isfinite(value):
            raise InvalidCell(
                column, f"{show_value(text)} is not finite: remove the row or measure again"
            )
        return value

    def positive(self, column: str) -> float:
        """Return a finite number above 0.

        Raises:
            InvalidCell: It is none.
        """
        value = self.number(column)
        if value <= 0:
            message = f"{self.text(column)} must be above 0: remove the row or measure again"
            raise InvalidCell(column, message)
        return value

    def optional_not_negative(self, column: str) -> float | None:
        """Return a finite number of at least 0; None where the cell is empty.

        Raises:
            InvalidCell: It is negative or no number.
        """
        if not self.text(column):
            return None
        value = self.number(column)
        if value < 0:
            raise InvalidCell(column, f"{self.text(column)} must not be below 0: correct it")
        return value

    def whole(self, column: str) -> int:
        """Return a whole number of at least 1; ``4.0`` is one too.

        Raises:
            InvalidCell: It is none.
        """
        value = self.number(column)
        if not (value.is_integer() and 1 <= value <= MAX_INTEGER):
            message = f"{show_value(self.text(column))} is no whole number from 1 up: write e.g. 4"
            raise InvalidCell(column, message)
        return int(value)


def _no_number(text: str) -> str:
    if not text:
        return "is empty: write a number or remove the row"
    if text.count(",") == 1 and text.replace(",", "").isdigit():
        return f'{show_value(text)} is no number: write a decimal point, "{text.replace(",", ".")}"'
    return f"{show_value(text)} is no number: write one such as 0.42"


class CsvReader:
    """Rows of a comma-separated text, read once and never held together.

    Attributes:
        columns: Names in the header, in lower case, without blanks around them.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        """Read the header.

        Raises:
            InvalidDocument: There is none, or it is no list of distinct column names.
        """
        self._line = ""
        self._reader = csv.reader(self._traced(lines), strict=True)
        header = self._next_cells()
        if header is None:
            raise InvalidDocument(
                [DocumentProblem("", "is empty: write a header and a row for each run")]
            )
        self._refuse_header(header)
        self.columns = tuple(cell.strip().lower() for cell in header)
        self.header_line = self._reader.line_num
        self._places = {column: place for place, column in enumerate(self.columns)}

    def _traced(self, lines: Iterable[str]) -> Iterator[str]:
        for number, line in enumerate(lines):
            self._line = line.removeprefix("\ufeff") if number == 0 else line
            yield self._line

    def _next_cells(self) -> list[str] | None:
        try:
            for cells in self._reader:
                if any(cell.strip() for cell in cells):
                    return cells
        except csv.Error as error:
            message = f"cannot be read as comma-separated text: {error}; look for a stray quote"
            raise InvalidDocument(
                [DocumentProblem("", message, self._reader.line_num, 1)]
            ) from None
        return None

    def _refuse_header(self, header: Sequence[str]) -> None:
        line = self._reader.line_num
        problems = [
            DocumentProblem("", message, line, self.character_column(place))
            for place, message in _header_flaws([cell.strip().lower() for cell in header])
        ]
        if problems:
            raise InvalidDocument(problems[:MAX_CSV_PROBLEMS])

    def read(self, add_row: Callable[[CsvRow], None]) -> int:
        """Hand every row to a function and return how many there were; blank lines are skipped.

        Raises:
            InvalidDocument: No row, too many, or some that cannot be used: up to ten problems.
        """
        problems: list[DocumentProblem] = []
        rows = 0
        while len(problems) < MAX_CSV_PROBLEMS and (cells := self._next_cells()) is not None:
            rows += 1
            problem = self._add(cells, add_row, rows)
            if problem is not None:
                problems.append(problem)
        if len(problems) == MAX_CSV_PROBLEMS:
            message = f"reading stopped after {MAX_CSV_PROBLEMS} problems; there may be more below"
            problems.append(DocumentProblem("", message, self._reader.line_num, 1))
        if rows == 0:
            problems.append(
                DocumentProblem("", "holds a header and no rows: write a row for each run")
            )
        if problems:
            raise InvalidDocument(problems)
        return rows

    def _add(
        self, cells: list[str], add_row: Callable[[CsvRow], None], rows: int
    ) -> DocumentProblem | None:
        line = self._reader.line_num
        if rows > MAX_CSV_ROWS:
            message = f"more than {MAX_CSV_ROWS:,} rows: average repeats first, or split the file"
            raise InvalidDocument([DocumentProblem("", message, line, 1)])
        if len(cells) != len(self.columns):
            message = f"has {len(cells)} cells where the header names {len(self.columns)} columns"
            return DocumentProblem("", f"{message}: add or remove commas", line, 1)
        try:
            add_row(CsvRow(cells, self._places))
        except InvalidCell as error:
            place = self._places.get(error.column, 0)
            return DocumentProblem(error.column, str(error), line, self.character_column(place))
        return None

    def character_column(self, cell_index: int) -> int:
        """Return the character, from 1, at which a cell of the newest row begins."""
        is_quoted = False
        for position, character in enumerate(self._line):
            if cell_index == 0:
                return position + 1
            if character == '"':
                is_quoted = not is_quoted
            elif character == "," and not is_quoted:
                cell_index -= 1
        return max(len(self._line.rstrip("\r\n")), 1)


def _header_flaws(names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the place of each column that cannot be one, and why."""
    joined = ",".join(names)
    for separator, name in SEPARATORS.items():
        if joined.count(separator) > joined.count(","):
            yield 0, f"columns are separated by {name}: save the table with commas instead"
            return
    if not all(character.isprintable() for character in joined):
        yield 0, "is no comma-separated text: save the table as CSV in UTF-8"
        return
    if all(map(_is_number, names)):
        yield 0, "the first line holds numbers: write the names of the columns above them"
        return
    for place, name in enumerate(names):
        if not name:
            yield place, f"column {place + 1} has no name: name it or remove it"
        elif name in names[:place]:
            yield place, f'column "{clip_text(name)}" is there twice: remove or rename one'


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
