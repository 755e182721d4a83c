"""Terminals that know few characters: each symbol that they lack has a twin of ASCII."""

from __future__ import annotations

import codecs
import io
from typing import TextIO

REPLACEMENT = "scavenger-ascii"
# As wide as what they stand for, so that tables and plots keep their columns.
TWINS = str.maketrans(
    {
        "★": "*", "✔": "+", "✗": "x", "✘": "x", "✕": "x", "●": "o", "◆": "#", "◇": "<", "▣": "@",
        "○": ".", "◔": ",", "◎": "0", "▶": ">", "■": "=", "▲": "!", "△": "^", "⚑": "P",
        "█": "#", "░": ".", "▒": "-", "·": "-", "–": "-", "—": "-", "…": ".", "→": ">", "←": "<",
        "≈": "~", "≤": "<", "≥": ">", "±": "~", "×": "x", "τ": "t", "γ": "g", "φ": "f", "θ": "h",
        "│": "|", "┤": "|", "├": "|", "┃": "|", "─": "-", "━": "-", "└": "+", "┘": "+", "╰": "+",
        "╯": "+", "╭": "+", "╮": "+", "┌": "+", "┐": "+", "┬": "+", "┴": "+", "┼": "+", "╶": "-",
        "╴": "-", "‖": "=", "╷": "|", "╵": "|", "°": "o", "µ": "u", "’": "'", "“": '"', "”": '"',
    }
)  # fmt: skip


def replace_characters(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that a stream cannot encode by their twins, or by question marks."""
    assert isinstance(error, UnicodeEncodeError)
    missing = error.object[error.start : error.end]
    twins = "".join(twin if twin.isascii() else "?" for twin in missing.translate(TWINS))
    return twins, error.end


codecs.register_error(REPLACEMENT, replace_characters)


def use_characters_of(stream: TextIO) -> None:
    """Let a stream replace what its terminal cannot show, instead of ending the program."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=REPLACEMENT)
