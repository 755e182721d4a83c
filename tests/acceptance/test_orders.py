"""Orders of users on a real job: it resizes, measures, pauses and goes on as they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.orders import OrderView
from tests.acceptance.test_told_to_leave import training
from tests.controller import Controller


def ask(controller: Controller, job: str, action: str, wish: dict[str, Any]) -> OrderView:
    answer = controller.ask("POST", f"/v1/jobs/{job}/actions/{action}", json=wish)
    assert answer.status_code == 202, answer.text
    return OrderView.model_validate_json(answer.text)


def ended(controller: Controller, given: OrderView) -> OrderView:
    """Wait until an order has ended, and return what became of it."""

    def look() -> OrderView | None:
        page = controller.ask("GET", f"/v1/jobs/{given.job}/orders").json()
        found = [OrderView.model_validate(each) for each in page["orders"]]
        (order,) = [each for each in found if each.number == given.number]
        return None if order.state == "open" else order

    order = controller.wait(look)
    assert order.state == "done", order
    return order


def is_on(controller: Controller, job: str, workers: int, batch: int) -> bool:
    applied = controller.job(job).applied
    return applied is not None and (applied.workers, applied.global_batch) == (workers, batch)


@pytest.mark.slow
def test_a_job_resizes_measures_pauses_and_goes_on_as_it_is_told(
    controller: Controller, open_directory: Path
) -> None:
    work = open_directory / "ordered"
    limits = {"workers": [1, 2], "batch": [24, 48], "max_cost": "1 USD"}
    job = controller.submit({**training(work, workers=1), "level": "control", "limits": limits})
    controller.wait(lambda: controller.job(job).progress.iteration > 5)
    pinned = ask(controller, job, "resize", {"to": {"workers": 2, "global_batch": 24}})
    assert "K=2 B=24" in ended(controller, pinned).told
    controller.wait(lambda: is_on(controller, job, 2, 24))
    view = controller.job(job)
    assert (view.phase, view.preference) == (JobPhase.TRAINING, "pinned")

    measured = ended(controller, ask(controller, job, "probe", {"workers": 1, "global_batch": 48}))
    assert measured.told.startswith("K=1 B=48 takes 0.")
    controller.wait(lambda: is_on(controller, job, 2, 24))
    curve = controller.curve(job)
    assert (1, 48) in [(probe.workers, probe.global_batch) for probe in curve.probes]
    assert controller.job(job).phase is JobPhase.TRAINING

    paused = ended(controller, ask(controller, job, "pause", {"reason": "for lunch"}))
    view = controller.job(job)
    assert (view.is_paused, view.workers_alive) == (True, 0)
    assert paused.told == f"paused after iteration {view.progress.iteration}: no machine runs"
    controller.wait(lambda: controller.job(job).reason.startswith("paused"))
    assert not controller.supervisors()
    assert any(Path(view.checkpoints or "").glob("[0-9]*/state.json"))

    before = {file.name for file in work.glob("*.jsonl")}
    ended(controller, ask(controller, job, "resume", {}))
    controller.wait(lambda: is_on(controller, job, 2, 24))

    def first_iteration() -> int | None:
        files = [file for file in work.glob("*.jsonl") if file.name not in before]
        lines = [line for file in files for line in file.read_text().splitlines(keepends=True)]
        whole = [json.loads(line)["iteration"] for line in lines if line.endswith("\n")]
        return min(whole, default=None)

    assert controller.wait(first_iteration) > view.progress.iteration
    assert all(each.iterations_lost in (0, None) for each in controller.curve(job).resizes)
    controller.ask("POST", f"/v1/jobs/{job}/actions/cancel")
    assert controller.finished(job).phase is JobPhase.CANCELLED
