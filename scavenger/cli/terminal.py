"""Terminal: where a command shows data and chatter, and how it reaches the controller."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import typer
from rich.console import Console, RenderableType

from scavenger.client.client import Client
from scavenger.client.profile import find_profile
from scavenger.view import View


class Form(StrEnum):
    """How data is written."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Terminal:
    """What a command works with.

    Attributes:
        data: Shows what was asked for, on standard output.
        chatter: Shows everything else, on standard error.
        connect: Opens a client; raises ClientError if it is not known where to.
        pause: Waits for so many seconds.
    """

    data: Console
    chatter: Console
    connect: Callable[[], Client]
    pause: Callable[[float], None] = time.sleep

    @property
    def is_live(self) -> bool:
        """Whether what was shown can be redrawn."""
        return self.data.is_terminal and not self.data.is_dumb_terminal

    @property
    def can_ask(self) -> bool:
        """Whether there is somebody to answer a question."""
        return self.chatter.is_terminal and sys.stdin.isatty()

    def show(self, view: View, form: Form, table: RenderableType) -> None:
        """Show a view as JSON, or as the table that was made of it."""
        match form:
            case Form.JSON:
                self.write(view.model_dump_json(indent=2))
            case Form.TABLE:
                self.data.print(table)

    def write(self, text: str) -> None:
        """Write a text for programs as it is, without wrapping."""
        self.data.file.write(f"{text}\n")
        self.data.file.flush()

    def say(self, text: RenderableType) -> None:
        """Show chatter."""
        self.chatter.print(text)


def open_terminal(url: str | None, token: str | None) -> Terminal:
    """Return the terminal of this process; the profile is looked up when a command connects."""

    def connect() -> Client:
        profile = find_profile(url, token)
        return Client(profile.url, profile.token)

    return Terminal(open_console(), open_console(is_chatter=True), connect)


def open_console(*, is_chatter: bool = False) -> Console:
    """Return a console that shows words as they are."""
    return Console(stderr=is_chatter, markup=False, emoji=False, highlight=False)


def terminal_of(context: typer.Context) -> Terminal:
    """Return the terminal the command was started with."""
    terminal = context.obj
    assert isinstance(terminal, Terminal)
    return terminal
