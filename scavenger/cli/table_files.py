"""FILE.csv arguments of ``fit`` and ``evaluate``, and the tables that they resolve to."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer

from scavenger.cli.errors import InvalidInput, TableNotSelected
from scavenger.errors import DocumentProblem, InvalidDocument
from scavenger.offline.tables.files import MeasurementTables, combine_tables, read_tables

TableFilesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE.csv...", help="CSV files with measurements (docs/measurements.md)."
    ),
]

MAX_TABLE_BYTES = 512 * 1024 * 1024  # tables are read into memory


def read_table_files(files: Sequence[Path]) -> MeasurementTables:
    """Read files of measurements and collect their tables.

    Raises:
        InvalidInput: All problems of the first file that cannot be used.
    """
    return combine_tables(read_table_file(file) for file in files)


def read_table_file(file: Path) -> MeasurementTables:
    """Read one file of measurements.

    Raises:
        InvalidInput: All problems of the file, with line and column.
    """
    try:
        if file.stat().st_size > MAX_TABLE_BYTES:
            raise _invalid(file, f"is larger than {MAX_TABLE_BYTES >> 20} MiB: split it by table")
        with file.open(encoding="utf-8", newline="") as lines:
            return read_tables(lines, name=file.stem)
    except InvalidDocument as error:
        raise invalid_table(file, error.problems) from None
    except UnicodeDecodeError as error:
        byte = f"byte {error.object[error.start]:#04x}"
        message = f"is no UTF-8 text, it holds {byte}: save the table as CSV in UTF-8"
        raise _invalid(file, message) from None
    except OSError as error:
        raise _invalid(file, f"cannot be read: {error.strerror or error}") from None


def _invalid(file: Path, message: str) -> InvalidInput:
    return invalid_table(file, [DocumentProblem("", message)])


def invalid_table(file: Path, problems: Sequence[DocumentProblem]) -> InvalidInput:
    """Return the error for a table that cannot be used."""
    return InvalidInput(str(file), problems)


def match_table_names(names: Sequence[str], pattern: str | None) -> tuple[str, ...]:
    """Return the names that match a pattern such as ``pollux/*/spread``; all names without one.

    Raises:
        TableNotSelected: No name matches.
    """
    if pattern is None:
        return tuple(names)
    # An exact name first: a name may contain characters that a pattern gives a meaning.
    found = tuple(n for n in names if n == pattern) or tuple(
        n for n in names if fnmatchcase(n, pattern)
    )
    if not found:
        raise TableNotSelected(f"No table matches {pattern}", names)
    return found
