"""The ``scavenger`` command: its subcommands, and how errors become a report and an exit code."""

from __future__ import annotations

import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from scavenger.cli.admin import admin_commands
from scavenger.cli.cost import cost
from scavenger.cli.curve import curve
from scavenger.cli.demo import demo
from scavenger.cli.doctor import doctor
from scavenger.cli.errors import render_report, report_error
from scavenger.cli.evaluate import evaluate
from scavenger.cli.fit import fit
from scavenger.cli.jobs import cancel, list_jobs, show
from scavenger.cli.models import models
from scavenger.cli.offers import offers
from scavenger.cli.output import open_console, open_terminal
from scavenger.cli.prices import price_commands
from scavenger.cli.programs import SERVE_CONTEXT, agent, serve
from scavenger.cli.simulate import simulate
from scavenger.cli.submit import submit
from scavenger.cli.tokens import token_commands
from scavenger.cli.watch import events, watch
from scavenger.errors import ExitCode, ScavengerError

UrlOption = Annotated[
    str | None, typer.Option("--url", help="Address of the controller. Default: SCAVENGER_URL.")
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        help="API token. Prefer SCAVENGER_TOKEN: other users can see the arguments of a command.",
    ),
]


class ErrorReportingGroup(TyperGroup):
    """Command group that turns an error of a command into a report and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ScavengerError as error:
            open_console(is_stderr=True).print(render_report(report_error(error)))
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None


app = typer.Typer(
    cls=ErrorReportingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="To begin: scavenger demo",
)


@app.callback()
def root(
    context: typer.Context,
    url: UrlOption = None,
    secret: TokenOption = None,
) -> None:
    """Choose workers and batch size while a training job runs, and resize it live."""
    # Tests pass a terminal of their own in as the object of the context.
    context.obj = context.obj or open_terminal(url, secret)


app.command(epilog="Example: scavenger demo")(demo)
app.command(context_settings=SERVE_CONTEXT)(serve)
app.command(epilog="Example: scavenger submit job.yaml --watch")(submit)
app.command("list", epilog="Example: scavenger list -o json")(list_jobs)
app.command(epilog="Example: scavenger show latest")(show)
app.command(epilog="Example: scavenger watch latest")(watch)
app.command(epilog="Example: scavenger curve digits -o json")(curve)
app.command(epilog="Example: scavenger events latest --follow")(events)
app.command(epilog="Example: scavenger cancel digits --yes")(cancel)
app.command(epilog="Example: scavenger models")(models)
app.command(epilog="Example: scavenger offers --needs vcpus=4,memory=16")(offers)
app.command(epilog="Example: scavenger cost --by day")(cost)
app.command(epilog="Example: scavenger doctor")(doctor)
app.command(epilog="Example: scavenger simulate --strategy partial --seeds 5")(simulate)
app.command(epilog="Example: scavenger fit steps.csv epochs.csv --dataset-size 50000")(fit)
app.command(epilog="Example: scavenger evaluate steps.csv --points 4,6")(evaluate)
app.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Example: scavenger agent run -- python train.py",
)(agent)

app.add_typer(admin_commands, name="admin")
app.add_typer(price_commands, name="prices")
app.add_typer(token_commands, name="token")


def main() -> None:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without ★ in its character set shows ? instead of ending the program.
            stream.reconfigure(errors="replace")
    app()
