"""Which entries of a directory git would leave out, by the .gitignore files in it and above it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from pathspec.patterns.gitignore.base import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

IGNORE_FILE = ".gitignore"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class IgnorePattern:
    """One line of a .gitignore file.

    A directory that is left out is never entered, so a pattern is only asked about an entry itself.
    The library also lets a pattern match what lies below a directory; ``fullmatch`` and another
    spelling of a last ``*`` or ``**`` keep that out.

    Attributes:
        line: The line, without its end.
    """

    line: str

    @cached_property
    def leaves_out(self) -> bool:
        """Whether it leaves entries out; with ``!`` it lets them in again."""
        return not self.line.startswith("!")

    @cached_property
    def _expression(self) -> re.Pattern[str] | None:
        negation, body = ("", self.line) if self.leaves_out else ("!", self.line[1:])
        is_for_directories = body.endswith("/")
        parts = body.removesuffix("/").split("/")
        if parts[-1] == "**" and len(parts) > 1:
            parts.append("?*")
        elif parts[-1] in ("*", "**"):
            parts[-1] = "?*"
        spelling = negation + "/".join(parts) + "/" * is_for_directories
        try:
            return GitIgnoreSpecPattern(spelling).regex
        except (GitIgnorePatternError, re.error):
            return None  # git takes it for a pattern that matches nothing

    def matches(self, path: str, *, is_directory: bool) -> bool:
        """Tell whether it is about an entry, by its path from the file that holds the pattern."""
        if self._expression is None:
            return False
        body = self.line.removeprefix("!").removesuffix("/")
        text = path if "/" in body else path.rpartition("/")[2]
        return bool(self._expression.fullmatch(f"{text}/" if is_directory else text))


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The .gitignore files that count for a directory, from the top of the repository down.

    Attributes:
        levels: Of each file, how deep it lies and what it says.
    """

    levels: tuple[tuple[int, tuple[IgnorePattern, ...]], ...] = ()

    def with_file(self, depth: int, content: bytes) -> IgnoreRules:
        """Return the rules with those of a .gitignore file that lies deeper than the others."""
        return IgnoreRules((*self.levels, (depth, tuple(read_patterns(content)))))

    def leave_out(self, path: tuple[str, ...], *, is_directory: bool) -> bool:
        """Tell whether git leaves out an entry; the deepest file that names it decides."""
        for depth, patterns in reversed(self.levels):
            below = "/".join(path[depth:])
            for pattern in reversed(patterns):
                if pattern.matches(below, is_directory=is_directory):
                    return pattern.leaves_out
        return False


def read_patterns(content: bytes) -> Iterator[IgnorePattern]:
    """Yield the patterns of a .gitignore file."""
    text = content.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "surrogateescape")
    for line in text.split("\n"):
        written = line.removesuffix("\r")
        # A space at the end counts only behind a backslash, of which an even number are escaped.
        kept = written.rstrip(" ")
        escapes = len(kept) - len(kept.rstrip("\\"))
        if escapes % 2 and kept != written:
            kept += " "
        if kept and not kept.startswith("#"):
            yield IgnorePattern(kept)
