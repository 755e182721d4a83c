"""``python -m worker_agent``: the command line of the agent (``scavenger agent ...``)."""

from __future__ import annotations

import typer

from worker_agent.cli import run, selftest, sync

app = typer.Typer(
    name="scavenger agent",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="What runs beside a training process: the agent.",
)


@app.callback()
def root() -> None:
    """What runs beside a training process: the agent."""


app.command(epilog="Example: scavenger agent sync ~/.scavenger/machines")(sync)

app.command()(selftest)

# What follows the command's name is its own, options too.
app.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Example: scavenger agent run --out rows.jsonl -- torchrun --nproc-per-node=2 train.py",
)(run)

if __name__ == "__main__":
    app(prog_name="scavenger agent")
