"""Table of the tokens of people."""

from __future__ import annotations

from datetime import datetime

from rich.console import RenderableType

from scavenger.cli.figures import UNKNOWN, words
from scavenger.cli.fitted_table import Cell, FittedTable, folded, long_name, name, word
from scavenger.view import TokenList, TokenView

COLUMNS = (
    name("ID"),
    long_name("NAME"),
    folded("PROJECT", 3),
    word("ROLE", 1),
    word("MADE BY", 5),
    word("LAST USED (UTC)", 4),
    word("EXPIRES (UTC)", 2),
    word("REVOKED (UTC)", 1),
)


def show_tokens(tokens: TokenList) -> RenderableType:
    """Show tokens, one row each."""
    return FittedTable(COLUMNS, [token_row(token) for token in tokens.tokens])


def token_row(token: TokenView) -> tuple[Cell, ...]:
    """Return the cells of a token."""
    names = (token.id, token.name, token.project, token.role.value, token.created_by)
    moments = (token.last_used_at, token.expires_at, token.revoked_at)
    return (*map(words, names), *map(day, moments))


def day(moment: datetime | None) -> str:
    """Write a moment to the minute."""
    return UNKNOWN if moment is None else f"{moment:%Y-%m-%d %H:%M}"
