"""``scavenger token``: creates, lists and revokes tokens of users."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from rich.console import RenderableType

from scavenger.cli.options import OutputOption
from scavenger.cli.output import (
    UNKNOWN_VALUE,
    Cell,
    OutputFormat,
    ResponsiveTable,
    get_terminal,
    long_name_column,
    plain_text,
    text_column,
    word_column,
)
from scavenger.job.fields import read_duration
from scavenger.schemas.access import TokenList, TokenView, UserRole

DAYS = re.compile(r" *([0-9]{1,5}) *d *")


def parse_lifetime(text: str) -> float:
    """Read a duration in seconds, which may count days as no job does: ``90d`` or ``8h``."""
    days = DAYS.fullmatch(text)
    try:
        return read_duration(text if days is None else f"{24 * int(days[1])}h")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


TokenNameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="User or program that the token is for.")
]
TokenIdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Token id (scavenger token list).")
]
RoleOption = Annotated[
    UserRole, typer.Option("--role", help="Role; each includes the ones before it.")
]
ProjectOption = Annotated[str | None, typer.Option("--project", help="Project; '*' for all.")]
LifetimeOption = Annotated[
    float | None,
    typer.Option(
        "--lifetime",
        parser=parse_lifetime,
        metavar="DURATION",
        help="How long the token is good, e.g. 90d or 8h. Default: until it is revoked.",
    ),
]

token_commands = typer.Typer(no_args_is_help=True, help="Manage API tokens.")


@token_commands.callback()
def root() -> None:
    """Manage API tokens."""


@token_commands.command(epilog="Example: scavenger token create ci --role submitter --lifetime 90d")
def create(
    context: typer.Context,
    name: TokenNameArgument,
    role: RoleOption = UserRole.VIEWER,
    project: ProjectOption = None,
    lifetime: LifetimeOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a token. It is written to standard output now, and never shown again."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        made = client.create_token(name, role, project, lifetime)
    terminal.print_result(made, output, plain_text(made.token))
    if output is not OutputFormat.TABLE:
        return
    expiry = made.expires_at
    until = "no expiry" if expiry is None else f"until {expiry:%Y-%m-%d %H:%M} UTC"
    terminal.print_message(
        f"{made.name}, {made.role} of {made.project}, {until}. Keep it: no command shows it again."
    )
    terminal.print_message(f"To revoke it: scavenger token revoke {made.id}")


@token_commands.command("list", epilog="Example: scavenger token list -o json")
def list_tokens(context: typer.Context, output: OutputOption = OutputFormat.TABLE) -> None:
    """List tokens, without their secrets."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        found = client.list_tokens()
    terminal.print_result(found, output, render_tokens(found))


@token_commands.command(epilog="Example: scavenger token revoke 0123456789ab")
def revoke(
    context: typer.Context, token: TokenIdArgument, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Revoke a token at once."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        revoked = client.revoke_token(token)
    terminal.print_result(revoked, output, render_tokens(TokenList(tokens=[revoked])))


TOKEN_COLUMNS = (
    word_column("ID"),
    long_name_column("NAME"),
    text_column("PROJECT", 3),
    word_column("ROLE", 1),
    word_column("MADE BY", 5),
    word_column("LAST USED (UTC)", 4),
    word_column("EXPIRES (UTC)", 2),
    word_column("REVOKED (UTC)", 1),
)


def render_tokens(tokens: TokenList) -> RenderableType:
    """Render a table of tokens."""
    return ResponsiveTable(TOKEN_COLUMNS, [_token_row(token) for token in tokens.tokens])


def _token_row(token: TokenView) -> tuple[Cell, ...]:
    names = (token.id, token.name, token.project, token.role.value, token.created_by)
    moments = (token.last_used_at, token.expires_at, token.revoked_at)
    return (
        *map(plain_text, names),
        *(UNKNOWN_VALUE if moment is None else f"{moment:%Y-%m-%d %H:%M}" for moment in moments),
    )
