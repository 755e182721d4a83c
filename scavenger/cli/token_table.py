"""Table of the tokens of people."""

from __future__ import annotations

from datetime import datetime

from rich.console import RenderableType
from rich.table import Table

from scavenger.cli.figures import UNKNOWN, words
from scavenger.view import TokenList


def show_tokens(tokens: TokenList) -> RenderableType:
    """Show tokens, one row each."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("ID", no_wrap=True)
    for title in ("NAME", "PROJECT", "ROLE", "MADE BY"):
        table.add_column(title, overflow="fold")
    for title in ("LAST USED (UTC)", "EXPIRES (UTC)", "REVOKED (UTC)"):
        table.add_column(title)
    for token in tokens.tokens:
        names = (token.id, token.name, token.project, token.role.value, token.created_by)
        moments = (token.last_used_at, token.expires_at, token.revoked_at)
        table.add_row(*map(words, names), *map(day, moments))
    return table


def day(moment: datetime | None) -> str:
    """Write a moment to the minute."""
    return UNKNOWN if moment is None else f"{moment:%Y-%m-%d %H:%M}"
