"""The ``scavenger`` command: its tree, and what becomes of errors."""

from __future__ import annotations

import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from scavenger.cli.admin import admin
from scavenger.cli.agent import AGENT_CONTEXT, agent
from scavenger.cli.curve import curve
from scavenger.cli.demo import demo
from scavenger.cli.doctor import doctor
from scavenger.cli.error_report import report_error, show_report
from scavenger.cli.errors import CommandError
from scavenger.cli.evaluate import evaluate
from scavenger.cli.events import events
from scavenger.cli.exit_code import ExitCode, code_of_error
from scavenger.cli.fit import fit
from scavenger.cli.jobs import cancel, list_jobs, show
from scavenger.cli.models import models
from scavenger.cli.serve import serve
from scavenger.cli.simulate import simulate
from scavenger.cli.submit import submit
from scavenger.cli.terminal import open_console, open_terminal
from scavenger.cli.token import token
from scavenger.cli.watch import watch
from scavenger.client.errors import ClientError

Url = Annotated[
    str | None, typer.Option("--url", help="Address of the controller; else SCAVENGER_URL.")
]
Secret = Annotated[
    str | None,
    typer.Option("--token", help="Token for it; better SCAVENGER_TOKEN, which nobody sees."),
]


class Commands(TyperGroup):
    """The commands; what goes wrong in one becomes a report and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except (ClientError, CommandError) as error:
            open_console(is_chatter=True).print(show_report(report_error(error)))
            raise typer.Exit(code_of_error(error)) from None
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Begin with: scavenger demo",
)


@app.callback()
def root(
    context: typer.Context,
    url: Url = None,
    secret: Secret = None,
) -> None:
    """Choose workers and batch size while a training job runs, and resize it live."""
    context.obj = context.obj or open_terminal(url, secret)


app.command(epilog="Example: scavenger demo")(demo)
app.command(epilog="Example: scavenger serve --port 8321 --home ~/.scavenger")(serve)
app.command(epilog="Example: scavenger submit job.yaml --watch")(submit)
app.command("list", epilog="Example: scavenger list -o json")(list_jobs)
app.command(epilog="Example: scavenger show latest")(show)
app.command(epilog="Example: scavenger watch latest")(watch)
app.command(epilog="Example: scavenger curve digits -o json")(curve)
app.command(epilog="Example: scavenger events latest --follow")(events)
app.command(epilog="Example: scavenger cancel digits --yes")(cancel)
app.command(epilog="Example: scavenger models")(models)
app.command(epilog="Example: scavenger doctor")(doctor)
app.command(epilog="Example: scavenger simulate --strategy partial --seeds 5")(simulate)
app.command(epilog="Example: scavenger fit steps.csv epochs.csv --dataset-size 50000")(fit)
app.command(epilog="Example: scavenger evaluate steps.csv --points 4,6")(evaluate)
app.command(
    context_settings=AGENT_CONTEXT, epilog="Example: scavenger agent run -- python train.py"
)(agent)

app.add_typer(admin, name="admin")
app.add_typer(token, name="token")


def main() -> None:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show ★ shows ? instead of ending the program.
            stream.reconfigure(errors="replace")
    app()
