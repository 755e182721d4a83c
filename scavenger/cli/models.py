"""``scavenger models``: the stored models that later jobs reuse."""

from __future__ import annotations

import typer

from scavenger.cli.figures import words
from scavenger.cli.model_table import show_models
from scavenger.cli.option import FormOption
from scavenger.cli.terminal import Form, terminal_of


def models(context: typer.Context, output: FormOption = Form.TABLE) -> None:
    """List the stored models: a job whose model is known needs no search."""
    terminal = terminal_of(context)
    with terminal.connect() as client:
        stored = client.models()
    if stored.models or output is Form.JSON:
        terminal.show(stored, output, show_models(stored))
    if not stored.models:
        terminal.say(words("No models yet: the first job of a model stores one."))
