"""``scavenger token``: who else may use a controller, as what, and for how long."""

from __future__ import annotations

from typing import Annotated

import typer

from scavenger.cli.figures import words
from scavenger.cli.option import FormOption
from scavenger.cli.terminal import Form, terminal_of
from scavenger.cli.token_table import show_tokens
from scavenger.view import PersonRole, TokenList

DAY = 86400.0

Name = Annotated[str, typer.Argument(help="Whom or what it is for.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Its id, as scavenger token list shows it.")]
RoleOption = Annotated[
    PersonRole, typer.Option("--role", help="What it lets its holder do, and all before it.")
]
ProjectOption = Annotated[
    str | None, typer.Option("--project", help="The project it is for; '*' for every one.")
]
Days = Annotated[
    float | None, typer.Option("--days", min=0.001, max=3650, help="Days it is good for.")
]

token = typer.Typer(no_args_is_help=True, help="Say who else may use a controller.")


@token.callback()
def root() -> None:
    """Say who else may use a controller."""


@token.command(epilog="Example: scavenger token create ci --role submitter --days 90")
def create(
    context: typer.Context,
    name: Name,
    role: RoleOption = PersonRole.VIEWER,
    project: ProjectOption = None,
    days: Days = None,
    output: FormOption = Form.TABLE,
) -> None:
    """Make a token. It is written to standard output now, and never shown again."""
    terminal = terminal_of(context)
    lifetime = None if days is None else days * DAY
    with terminal.connect() as client:
        made = client.create_token(name, role, project, lifetime)
    if output is Form.JSON:
        terminal.write(made.model_dump_json(indent=2))
        return
    terminal.write(made.token)
    until = "for ever" if made.expires_at is None else f"until {made.expires_at:%Y-%m-%d %H:%M} UTC"
    terminal.say(words(f"{made.name}, {made.role} of {made.project}, {until}. Keep it: nobody can"))
    terminal.say(words(f"show it again. To take it back: scavenger token revoke {made.id}"))


@token.command("list", epilog="Example: scavenger token list -o json")
def list_tokens(context: typer.Context, output: FormOption = Form.TABLE) -> None:
    """List the tokens there are, without their secrets."""
    terminal = terminal_of(context)
    with terminal.connect() as client:
        found = client.tokens()
    terminal.show(found, output, show_tokens(found))


@token.command(epilog="Example: scavenger token revoke 0123456789ab")
def revoke(context: typer.Context, token: Id, output: FormOption = Form.TABLE) -> None:
    """Let a token open nothing any more, at once."""
    terminal = terminal_of(context)
    with terminal.connect() as client:
        revoked = client.revoke_token(token)
    terminal.show(revoked, output, show_tokens(TokenList(tokens=[revoked])))
