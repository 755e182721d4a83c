"""Reads files of measurements from disk, and says with file, line and column what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from scavenger.cli.errors import NoSuchTable, UnusableDocument
from scavenger.errors import InvalidDocument, Problem
from scavenger.tables.tables import Tables, gather, read_tables

MAX_BYTES = 512 * 1024 * 1024


def read_files(files: Sequence[Path]) -> Tables:
    """Read files and put their tables together.

    Raises:
        UnusableDocument: Everything that is wrong with the first file that cannot be used.
    """
    return gather(read_file(file) for file in files)


def read_file(file: Path) -> Tables:
    """Read one file.

    Raises:
        UnusableDocument: Everything that is wrong with it, and where.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            raise _refusal(file, f"is larger than {MAX_BYTES >> 20} MiB: split it by table")
        with file.open(encoding="utf-8", newline="") as lines:
            return read_tables(lines, name=file.stem)
    except InvalidDocument as error:
        raise unusable(file, error.problems) from None
    except UnicodeDecodeError as error:
        byte = f"byte {error.object[error.start]:#04x}"
        message = f"is no UTF-8 text, it holds {byte}: save the table as CSV in UTF-8"
        raise _refusal(file, message) from None
    except OSError as error:
        raise _refusal(file, f"cannot be read: {error.strerror or error}") from None


def _refusal(file: Path, message: str) -> UnusableDocument:
    return unusable(file, [Problem("", message)])


def unusable(file: Path, problems: Sequence[Problem]) -> UnusableDocument:
    """Return the error for a table that cannot be used."""
    return UnusableDocument(str(file), problems, remedy="try again")


def matching(names: Sequence[str], pattern: str | None) -> tuple[str, ...]:
    """Return the names that a pattern such as ``pollux/*/spread`` means; all without one.

    Raises:
        NoSuchTable: There are none.
    """
    if pattern is None:
        return tuple(names)
    found = tuple(n for n in names if n == pattern) or tuple(
        n for n in names if fnmatchcase(n, pattern)
    )
    if not found:
        raise NoSuchTable(f"No table is called {pattern}", names)
    return found
