"""Writes docs/commands.md and docs/output-schemas.json from the commands themselves.

``python -m tests.docs.command_reference`` writes them; a test holds that they are as written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from pydantic import TypeAdapter

from scavenger.cli.commands import NEIGHBOURS_WORDS
from scavenger.cli.main import COMMANDS
from tests.docs.test_docs import DOCS
from tests.integration.every_command import LINES, walk

PAGE, SCHEMAS = DOCS / "commands.md", DOCS / "output-schemas.json"
HEAD = """\
# Commands

Every command of `scavenger`, as its `--help` says it. `--url` and `--token` may stand anywhere in
a line; without them a command finds the controller by `SCAVENGER_URL` and `SCAVENGER_TOKEN`, or
else the one that runs on this computer. Results go to standard output, all else to standard error.
How commands end: [exit codes](exit-codes.md).

Commands that read take `-o table`, `json`, `yaml` or `name`, and the names are what other commands
accept. What `-o json` writes is described by [output-schemas.json](output-schemas.json), a JSON
Schema under the name of each command; newer versions add keys and never change what one means.

This page is made by `python -m tests.docs.command_reference`.
"""
TAIL = """\
## Words of other tools

These are no commands here; each is answered with the one that does the same.

| Word | Here |
|---|---|
"""


def page() -> str:
    """Return the page."""
    commands = {" ".join(words): command for words, command in walk()}
    parts = [HEAD]
    for panel, entries in groupby(COMMANDS, lambda entry: entry.panel):
        parts.append(f"## {panel}\n")
        for entry in entries:
            mine = {n: c for n, c in commands.items() if n.split()[0] == entry.name}
            parts += [section(name, command) for name, command in mine.items()]
    words = dict[str, list[str]]()
    for word, here in sorted(NEIGHBOURS_WORDS.items()):
        if word not in {entry.name for entry in COMMANDS}:
            words.setdefault(here, []).append(f"`{word}`")
    rows = [f"| {', '.join(known)} | `{here}` |" for here, known in words.items()]
    return "\n".join([*parts, TAIL + "\n".join(rows) + "\n"])


def section(name: str, command: Any) -> str:
    """Return what the page says about one command."""
    text = (command.help or "").strip()
    example = (command.epilog or "").removeprefix("Example: ")
    rows = [row for option in command.params if (row := option_row(option))]
    usage = " ".join(["scavenger", name, *arguments_of(command)])
    parts = [f"### {name}", f"```text\n{usage}\n```", text]
    if rows:
        parts.append("\n".join(["| Option | Default | What it does |", "|---|---|---|", *rows]))
    if example:
        parts.append(f"Example: `{example}`")
    return "\n\n".join(parts) + "\n"


def arguments_of(command: Any) -> Iterator[str]:
    """Yield the arguments of a command, as its usage names them."""
    for option in command.params:
        if option.param_type_name == "argument":
            shown = option.metavar or option.name.upper()
            yield shown if option.required or shown.startswith("[") else f"[{shown}]"
    if any(option.param_type_name == "option" for option in command.params):
        yield "[OPTIONS]"


def option_row(option: Any) -> str:
    """Return the row of an option; empty for an argument and for what is hidden."""
    if option.param_type_name != "option" or option.hidden or "--help" in option.opts:
        return ""
    names = ", ".join(f"`{name}`" for name in option.opts)
    value = option.default
    shown = getattr(value, "value", value)
    default = "" if shown in (None, False, ()) or callable(shown) else f"`{shown}`"
    text = " ".join((option.help or "").split()).replace("|", "\\|")
    return f"| {names} | {default} | {text} |"


def schemas() -> str:
    """Return the JSON Schema of what each command writes with ``-o json``."""
    shared, by_command = dict[str, Any](), dict[str, Any]()
    for name, line in LINES.items():
        if line is None or line.view is None:
            continue
        schema = TypeAdapter(line.view).json_schema(
            mode="serialization", ref_template="#/$defs/{model}"
        )
        shared.update(schema.pop("$defs", {}))
        by_command[name] = schema
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "description": "What each command of scavenger writes with -o json, by its name",
        "properties": dict(sorted(by_command.items())),
        "$defs": dict(sorted(shared.items())),
    }
    return json.dumps(document, indent=1, ensure_ascii=False, sort_keys=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    SCHEMAS.write_text(schemas())
