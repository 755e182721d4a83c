"""The pages of ``--help``, and how an error of a command becomes a report and an exit code.

A page cuts no word: where the terminal is narrow, what an option does stands below its name.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from scavenger.errors import ExitCode, ScavengerError

WIDEST_PAGE = 110  # longer lines are hard to read
TWO_COLUMNS_FROM = 80
NAME_COLUMN = 28
MOST_CHOICES = 12
KINDS = {
    "<str>": "TEXT", "<dir>": "DIR", "<file>": "FILE", "<path>": "FILE", "<float>": "NUMBER",
    "<int>": "N", "<int range>": "N", "<float range>": "NUMBER",
}  # fmt: skip
WHOLE_NUMBERS = ("<int>", "<int range>")
Row = tuple[str, str]


class CommandWithPage(TyperCommand):
    """A command whose ``--help`` is a page of this module."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        print_page(self, ctx)

    def get_usage(self, ctx: Any) -> str:
        return usage_of(self, ctx.command_path)


class GroupWithPage(TyperGroup):
    """A group of commands whose ``--help`` is a page of this module."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        print_page(self, ctx)

    def get_usage(self, ctx: Any) -> str:
        return usage_of(self, ctx.command_path)


class ReportingGroup(GroupWithPage):
    """The commands of a program; an error of one becomes a report and an exit code."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        with errors_as_exit():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        with errors_as_exit():
            return super().invoke(ctx)


@contextmanager
def errors_as_exit() -> Iterator[None]:
    """Turn an error of a command into a report on standard error and an exit code."""
    try:
        yield
    except typer.TyperException as error:
        raise typer.Exit(report_misuse(error)) from None
    except ScavengerError as error:
        raise typer.Exit(report(error)) from None
    except typer.Abort:
        # The answer to a question was no, or Ctrl-C.
        sys.stderr.write("Nothing was changed.\n")
        raise typer.Exit(ExitCode.OTHER) from None
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        raise typer.Exit(close_output()) from None
    except OSError as error:
        from scavenger.cli.errors import PlaceUnusable

        raise typer.Exit(report(PlaceUnusable(error))) from None


def report(error: ScavengerError) -> ExitCode:
    """Report an error to the user, and return the exit code of the command."""
    from scavenger.cli.errors import render_report, report_error
    from scavenger.cli.output import open_console

    open_console(is_stderr=True).print(render_report(report_error(error)))
    return error.exit_code


def report_misuse(error: typer.TyperException) -> int:
    """Say why a line cannot be read; a line that names no command has its list printed already."""
    if error.format_message():
        from scavenger.cli.errors import ErrorReport, render_report
        from scavenger.cli.output import open_console

        open_console(is_stderr=True).print(render_report(ErrorReport(*describe_misuse(error))))
    return error.exit_code


def close_output() -> ExitCode:
    """Let the rest of the output vanish, since its reader went away, as `head` does."""
    # Python flushes standard output at its end, and would complain again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.CLOSED_PIPE


class PipeConsole(Console):
    """A console that tells its command when the reader of its output went away."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def print_page(command: Any, context: Any) -> None:
    """Print the page of a command."""
    console = PipeConsole(markup=False, emoji=False, highlight=False)
    width = min(console.width, WIDEST_PAGE)
    console.print(Text("\n").join(page_lines(command, context, width)), soft_wrap=True)


def page_lines(command: Any, context: Any, width: int) -> Iterator[Text]:
    """Yield the lines of a page, none of which is wider than the terminal."""
    usage = usage_of(command, context.command_path)
    for line in textwrap.wrap(f"Usage: {usage}", width, subsequent_indent=" " * 7):
        yield Text(line, "bold")
    for paragraph in paragraphs_of(command.help or ""):
        yield Text()
        yield from map(Text, wrap(paragraph, width))
    for heading, rows in sections_of(command, context):
        yield Text()
        yield Text(heading, "bold")
        yield from list_lines(rows, width)
    if command.epilog:
        yield Text()
        yield from map(Text, wrap(command.epilog, width))


def sections_of(command: Any, context: Any) -> Iterator[tuple[str, Sequence[Row]]]:
    """Yield the lists of a page: commands by their panel, arguments, options."""
    panels = dict[str, list[Row]]()
    for name, each in getattr(command, "commands", {}).items():
        summary = next(paragraphs_of(each.short_help or each.help or ""), "")
        panels.setdefault(each.rich_help_panel or "Commands", []).append((name, summary))
    yield from panels.items()
    shown = [each for each in command.get_params(context) if not each.hidden]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    if arguments:
        yield "Arguments", [(argument_name(each), describe(each, context)) for each in arguments]
    if options:
        yield "Options", [(option_name(each, context), describe(each, context)) for each in options]


def paragraphs_of(text: str) -> Iterator[str]:
    r"""Yield the paragraphs of a docstring, each in one line, without its marks of code.

    >>> list(paragraphs_of("One\n    line.\n\n    ``Two``\n    lines."))
    ['One line.', 'Two lines.']
    """
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if words := " ".join(paragraph.replace("``", "").split()):
            yield words


def list_lines(rows: Sequence[Row], width: int) -> Iterator[Text]:
    """Yield the lines of a list: the text beside the name, or below where there is no room."""
    fitting = [len(name) for name, _ in rows if len(name) <= NAME_COLUMN]
    column = 4 + max(fitting, default=0)
    # Short names, such as those of commands, leave room beside them on any terminal.
    has_room = width >= TWO_COLUMNS_FROM or max(len(name) for name, _ in rows) <= width // 4
    indent = column if has_room else 6
    for name, text in rows:
        lines = wrap(text, width - indent)
        first = Text.assemble("  ", (name, "cyan"))
        if has_room and len(name) <= NAME_COLUMN and lines:
            first.append(" " * (column - 2 - len(name)) + lines.pop(0))
        yield first
        yield from (Text(" " * indent + line) for line in lines)


def wrap(text: str, width: int) -> list[str]:
    """Wrap a text at its blanks; a name with a hyphen stays whole."""
    return textwrap.wrap(text, width, break_on_hyphens=False)


def usage_of(command: Any, path: str) -> str:
    """Return what a line of a command holds, such as ``scavenger show JOB [OPTIONS]``."""
    words = [path]
    for each in command.params:
        if each.param_type_name == "argument":
            name = argument_name(each)
            words.append(name if each.required or name.startswith("[") else f"[{name}]")
        elif each.required:
            words.append(f"{each.opts[0]} {value_name(each, None)}")
    if any(each.param_type_name == "option" for each in command.params):
        words.append("[OPTIONS]")
    if hasattr(command, "commands"):
        words.append("[COMMAND]" if command.invoke_without_command else "COMMAND")
    return " ".join(words)


def argument_name(argument: Any) -> str:
    """Return the name of an argument, such as ``JOB``."""
    return str(argument.metavar or argument.name.upper())


def option_name(option: Any, context: Any) -> str:
    """Return the names of an option and what follows it, such as ``--limit N``."""
    names = ", ".join(sorted(option.opts, key=len))
    return names if option.is_flag else f"{names} {value_name(option, context)}"


def value_name(option: Any, context: Any) -> str:
    """Return what stands for the value of an option."""
    if option.metavar:
        return str(option.metavar)
    kind = option.display_type(context)
    return option.name.upper().replace("_", "-") if "|" in kind else KINDS.get(kind, "VALUE")


def describe(parameter: Any, context: Any) -> str:
    """Return what a parameter is for, which values it takes, and its default."""
    sentences = [" ".join((parameter.help or "").split())]
    kind = parameter.display_type(context).strip("<>")
    if "|" in kind and "|" not in (parameter.metavar or ""):
        names = kind.removeprefix("list[").rstrip("]").split("|")
        # Long lists, such as those of the kinds of events, would bury the other options.
        sentences.append(f"One of {', '.join(names)}." if len(names) <= MOST_CHOICES else "")
    bounds, default = describe_bounds(parameter), describe_default(parameter)
    sentences.append(f"{bounds[:1].upper()}{bounds[1:]}." if bounds else "")
    sentences.append(f"Default: {default}." if default else "")
    return " ".join(filter(None, sentences))


def describe_bounds(parameter: Any) -> str:
    """Return between which numbers the value of a parameter lies, such as ``1 to 500``."""
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if low is not None and high is not None:
        return f"{low} to {high}"
    if low is not None:
        return f"from {low} up"
    return "" if high is None else f"at most {high}"


def describe_default(parameter: Any) -> str:
    """Return what a parameter is where a line does not name it; empty where nothing is."""
    value = parameter.default
    if value in (None, False, "", ()) or callable(value) or not parameter.show_default:
        return ""
    values = value if isinstance(value, (list, tuple)) else [value]
    return ", ".join(str(getattr(each, "value", each)) for each in values)


def describe_misuse(error: Any) -> tuple[str, list[Row]]:
    """Return why a line cannot be read, with its usage and where to read more."""
    context, parameter = error.ctx, getattr(error, "param", None)
    said = re.sub(r"\s+", " ", error.format_message()).replace("Value error, ", "").rstrip(".")
    if parameter is not None and "Input should be" in said:
        kind = parameter.display_type(context)
        what = "a whole number" if kind in WHOLE_NUMBERS else "a number"
        bounds = describe_bounds(parameter)
        wanted = f"{what}, {bounds}" if bounds.startswith("at") else f"{what} {bounds}".strip()
        wanted = wanted if bounds[:1].isalpha() or not bounds else f"{what} from {bounds}"
        said = f"{said.partition(': ')[0]}: write {wanted}"
    if context is None:
        return said, []
    # Options that stand in no command, and unknown commands, have the whole list as their page.
    page = f"{context.command_path} --help"
    return said, [("Usage", context.get_usage()), ("You can", f"read what it takes: {page}")]
