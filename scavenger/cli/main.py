"""The ``scavenger`` command: the table of its commands, and how errors become an exit code.

A new command is one line of ``COMMANDS``: name, place, half a line of summary, panel, example.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from scavenger.cli.commands import CommandEntry, CommandTable

# Every word after the name of a program goes to it, --help too.
PROGRAM_SETTINGS = {
    "allow_interspersed_args": False,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
BEGIN, JOBS, KNOWN = "To begin", "Jobs", "Models, machines and money"
OFFLINE, OPERATE = "Without a controller", "Administration"

# One line each, however long.
# fmt: off
# ruff: noqa: E501
COMMANDS = (
    CommandEntry("demo", "demo:demo", "Train one job twice on this computer", BEGIN, "demo"),
    CommandEntry("init", "init:init", "Write a job file for your script", BEGIN, "init"),
    CommandEntry("serve", "programs:serve", "Run the controller until Ctrl-C", BEGIN, "", PROGRAM_SETTINGS),
    CommandEntry("dashboard", "dashboard:dashboard", "Open the dashboard in a browser, signed in", BEGIN, "dashboard latest"),
    CommandEntry("doctor", "doctor:doctor", "Check a controller and its computer", BEGIN, "doctor"),
    CommandEntry("plan", "plan:plan", "Show what a job would take, and spend nothing", JOBS, "plan job.yaml"),
    CommandEntry("submit", "submit:submit", "Submit a job", JOBS, "submit job.yaml --watch"),
    CommandEntry("list", "jobs:list_jobs", "List jobs, newest first", JOBS, "list -o json"),
    CommandEntry("show", "jobs:show", "Show one job in detail", JOBS, "show latest"),
    CommandEntry("watch", "watch:watch", "Show a job until it ends", JOBS, "watch latest"),
    CommandEntry("curve", "curve:curve", "Show time and cost of each configuration", JOBS, "curve digits -o json"),
    CommandEntry("explain", "explain:explain", "Explain a choice against its alternatives", JOBS, "explain latest"),
    CommandEntry("stacks", "stacks:stacks", "Show what each way of computing a step is worth", JOBS, "stacks latest"),
    CommandEntry("events", "watch:events", "Show what happened to a job, and why", JOBS, "events latest --follow"),
    CommandEntry("export", "export:export", "Write measured series for MLflow or TensorBoard", JOBS, "export latest --to tensorboard runs"),
    CommandEntry("resize", "orders:resize", "Move a job to another configuration", JOBS, "resize digits --to cheapest --yes"),
    CommandEntry("probe", "orders:probe", "Measure one configuration of a running job", JOBS, "probe digits 2,64"),
    CommandEntry("pause", "orders:pause", "End a job's machines until it is resumed", JOBS, "pause digits"),
    CommandEntry("resume", "orders:resume", "Let a paused job go on", JOBS, "resume digits"),
    CommandEntry("limit", "orders:limit", "Change a job's limits or objective", JOBS, "limit digits --max-cost '5 USD'"),
    CommandEntry("orders", "orders:list_orders", "Show what was ordered of a job", JOBS, "orders digits"),
    CommandEntry("logs", "logs:logs", "Show what a job prints", JOBS, "logs latest --follow"),
    CommandEntry("cancel", "jobs:cancel", "Cancel a job", JOBS, "cancel digits --yes"),
    CommandEntry("model", "models:model_commands", "List, show or forget stored models, which later jobs reuse", KNOWN),
    CommandEntry("machine", "machines:machine_commands", "List the machines of jobs", KNOWN),
    CommandEntry("offers", "offers:offers", "List machines of the clouds, cheapest first", KNOWN, "offers --needs vcpus=4,memory=16"),
    CommandEntry("prices", "prices:price_commands", "List or import prices of machines", KNOWN),
    CommandEntry("cost", "cost:cost", "Show what machines cost", KNOWN, "cost --by day"),
    CommandEntry("simulate", "simulate:simulate", "Compare search strategies on a simulated job", OFFLINE, "simulate --strategy partial --seeds 5"),
    CommandEntry("fit", "fit:fit", "Fit the models to your measurements", OFFLINE, "fit steps.csv epochs.csv --dataset-size 50000"),
    CommandEntry("evaluate", "evaluate:evaluate", "Check predictions against measurements", OFFLINE, "evaluate steps.csv --points 4,6"),
    CommandEntry("agent", "programs:agent", "Run a script under the agent, or test it here", OFFLINE, "agent run -- python train.py", {"allow_interspersed_args": False}),
    CommandEntry("version", "doctor:show_version", "Show the versions of program and controller", OPERATE, "version"),
    CommandEntry("token", "tokens:token_commands", "Manage API tokens", OPERATE),
    CommandEntry("webhook", "webhooks:webhook_commands", "Tell Slack or programs of events", OPERATE),
    CommandEntry("admin", "admin:admin_commands", "Orphaned machines, backup, restore", OPERATE),
)
# fmt: on

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


def print_version(is_wanted: bool) -> None:
    """Print the version of this program and end."""
    if is_wanted:
        from importlib.metadata import version

        sys.stdout.write(f"scavenger {version('scavenger')}\n")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option(
        "--version", callback=print_version, is_eager=True, help="Show this program's version."
    ),
]


class MainCommands(CommandTable):
    """The commands of ``scavenger``."""

    entries = COMMANDS
    programs = ("agent", "serve")


app = typer.Typer(
    cls=MainCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="To begin: scavenger demo. --url and --token may stand after the command, too.",
)


@app.callback()
def root(
    context: typer.Context,
    url: UrlOption = None,
    secret: TokenOption = None,
    version: VersionOption = False,
) -> None:
    """Choose workers and batch size while a training job runs, and resize it live."""
    from scavenger.cli.output import open_terminal

    # Tests pass a terminal of their own in as the object of the context.
    context.obj = context.obj or open_terminal(url, secret)


def main() -> None:
    """Run the command line of this process."""
    from scavenger.cli.characters import use_characters_of

    for stream in (sys.stdout, sys.stderr):
        use_characters_of(stream)
    app()
