"""A job that may choose its stack: found by probes, trained with, and reused without a search."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scavenger.schemas.jobs import JobPhase
from tests.acceptance.test_digits_job import digits
from tests.controller import Controller


@pytest.mark.slow
def test_the_digits_job_chooses_its_stack_and_the_next_one_knows_it(controller: Controller) -> None:
    key = {"key": "examples/digits-stacked", "dataset_size": 1437}
    document = digits(model=key, stacks="auto", precision="any")
    first = controller.finished(controller.submit(document))
    assert first.phase is JobPhase.SUCCEEDED, first.reason
    curve = controller.curve(first.id)
    measured = {probe.stack for probe in curve.probes}
    assert "eager" in measured
    assert len(measured) > 2
    assert curve.chosen is not None
    assert curve.chosen.stack != "eager", "one of them is faster on any machine"
    assert {point.stack for point in curve.points} <= measured
    entered = [resize for resize in curve.resizes if resize.pause is not None]
    assert all(resize.iterations_lost == 0 for resize in entered)
    on_fewest = [(p.stack, p.global_batch) for p in curve.probes if p.workers == 1]
    for stack in measured - {"eager", curve.chosen.stack}:
        assert len({batch for name, batch in on_fewest if name == stack}) <= 2
    said = shown_stacks(controller, first.id)
    assert all(stack in said for stack in measured)
    assert "chosen" in said

    again = controller.finished(controller.submit(document))
    assert again.phase is JobPhase.SUCCEEDED, again.reason
    (choice,) = [event for event in controller.events(again.id) if event.kind == "choice"]
    assert choice.message.startswith("no search: model of 1 earlier job")
    reused = controller.curve(again.id)
    assert reused.chosen is not None
    assert reused.chosen.stack == curve.chosen.stack
    assert not reused.probes


def shown_stacks(controller: Controller, job: str) -> str:
    """Return what the command says of the stacks of a job."""
    connection = controller.connection
    told = {"SCAVENGER_URL": connection["url"], "SCAVENGER_TOKEN": connection["token"]}
    command = [sys.executable, "-c", "from scavenger.cli import main; main()", "stacks", job]
    environment = {**os.environ, **told, "COLUMNS": "160"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout
