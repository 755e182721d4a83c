"""A group of commands whose modules are imported only when one of them runs.

``scavenger --help`` shows the table of ``scavenger.cli.main`` and imports no command. The options
of every command, such as ``--url``, may stand anywhere; a neighbour's word gets an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command, get_group

from scavenger.cli.help import CommandWithPage, GroupWithPage, ReportingGroup
from scavenger.errors import ExitCode, ScavengerError

OPTIONS_OF_EVERY_COMMAND = ("--url", "--token")
# Words of sky, dstack, kubectl, docker and of this project's own papers, with ours.
NEIGHBOURS_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("ps", "ls", "jobs", "queue"), "scavenger list"),
    **dict.fromkeys(("status", "get", "describe"), "scavenger show JOB, or scavenger list for all"),
    **dict.fromkeys(("apply", "launch", "run", "create"), "scavenger submit FILE"),
    **dict.fromkeys(("stop", "delete", "down", "kill", "rm"), "scavenger cancel JOB"),
    **dict.fromkeys(("pareto", "front", "tradeoff"), "scavenger curve JOB"),
    "models": "scavenger model list",
    **dict.fromkeys(("machines", "vms", "instances", "nodes"), "scavenger machine list"),
    "tail": "scavenger logs JOB --follow",
    "scale": "scavenger resize JOB --to K,B",
    "top": "scavenger watch JOB",
}


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A line of the table of commands.

    Attributes:
        name: What a user types.
        place: Module below ``scavenger.cli`` and name of the function, or of the Typer of a group.
        summary: Half a line for the list of commands.
        panel: Heading under which the list shows it.
        example: A command line without ``scavenger``; a group has one for each of its commands.
        context_settings: Of a program that reads its arguments itself.
    """

    name: str
    place: str
    summary: str
    panel: str
    example: str = ""
    context_settings: Mapping[str, Any] = field(default_factory=dict)

    def describe(self) -> TyperCommand:
        """Return what the list of commands shows, without an import."""
        return TyperCommand(self.name, help=self.summary, rich_help_panel=self.panel)

    def load(self) -> Any:
        """Import the command."""
        module, _, attribute = self.place.partition(":")
        found = getattr(import_module(f"scavenger.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            for each in found.registered_commands:
                each.cls = CommandWithPage
            found.info.cls = GroupWithPage
            group = get_group(found)
            group.name = self.name
            return group
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        epilog = f"Example: scavenger {self.example}" if self.example else None
        settings = dict(self.context_settings)
        alone.command(self.name, cls=CommandWithPage, epilog=epilog, context_settings=settings)(
            found
        )
        return get_command(alone)


class NeighboursWord(ScavengerError):
    """The word of another tool was typed; the remedy names the command here."""

    exit_code = ExitCode.USAGE

    def __init__(self, word: str) -> None:
        self.word = word
        super().__init__(f"scavenger has no command {word}: here it is {NEIGHBOURS_WORDS[word]}")


class CommandTable(ReportingGroup):
    """The commands of a table; subclasses name their table and their programs.

    Attributes:
        entries: The table, in the order in which commands are listed.
        programs: Commands that read every word after their name themselves.
    """

    entries: Sequence[CommandEntry] = ()
    programs: Sequence[str] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {entry.name: entry.describe() for entry in self.entries}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, move_to_front(args, self.programs))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args[0] in NEIGHBOURS_WORDS and args[0] not in self.commands:
            raise NeighboursWord(args[0])
        name, described, rest = super().resolve_command(ctx, args)
        return name, described if name is None else self.load(name), rest

    def load(self, name: str) -> Any:
        """Import a command of the table."""
        return next(entry for entry in self.entries if entry.name == name).load()

    def load_all(self) -> dict[str, Any]:
        """Import every command."""
        return {entry.name: entry.load() for entry in self.entries}


def move_to_front(words: Iterable[str], programs: Sequence[str] = ()) -> list[str]:
    """Move the options of every command to the front of a line, where they are read.

    >>> move_to_front(["list", "--url", "http://here", "-o", "json"])
    ['--url', 'http://here', 'list', '-o', 'json']
    >>> move_to_front(["agent", "sync", "--token=t"], ["agent"])
    ['agent', 'sync', '--token=t']
    """
    front, rest = list[str](), list[str]()
    line = iter(words)
    for word in line:
        name, has_value, _ = word.partition("=")
        if name in OPTIONS_OF_EVERY_COMMAND:
            front += [word] if has_value else [word, *islice(line, 1)]
            continue
        rest.append(word)
        if word == "--" or (word in programs and len(rest) == 1):
            rest += line
    return [*front, *rest]
