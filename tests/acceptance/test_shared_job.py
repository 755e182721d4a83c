"""The example whose workers share a model: alone, and as a job that loses a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from scavenger.job.validation import parse_job
from scavenger.layout import Layout
from scavenger.schemas.jobs import JobPhase
from tests.bench.example import EXAMPLES
from tests.controller import Controller

EXAMPLE = EXAMPLES / "digits-pipeline"
# Few samples and many weights: two copies would average them for longer than they compute.
WIDE = """
import torch
from torch import nn
import worker_agent

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(64, 1024)
targets = inputs.mean(dim=1, keepdim=True)
model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)), nn.Linear(1024, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with worker_agent.session() as job:
    job.prepare(model, optimizer, loss=nn.functional.mse_loss)
    for indices in job.batches(len(inputs), global_batch=4, epochs=30):
        optimizer.zero_grad()
        loss = job.step(inputs[indices], targets[indices])
        optimizer.step()
        job.log(loss=loss)
"""


def document(**changes: Any) -> dict[str, Any]:
    """Return the example's job, with the Python of the tests."""
    read: dict[str, Any] = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    read["run"] = {"command": [sys.executable, "train.py"], "directory": str(EXAMPLE)}
    return {**read, **changes}


def test_the_example_trains_alone_and_its_job_shares_the_model() -> None:
    assert parse_job((EXAMPLE / "job.yaml").read_text()).layout == Layout(2, micro_batches=4)
    shorter = (EXAMPLE / "train.py").read_text().replace("epochs=60", "epochs=2")
    said = subprocess.run(
        [sys.executable, "-c", shorter], capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith("iteration 0: accuracy 0.")


@pytest.mark.slow
def test_the_example_reaches_its_target_and_the_next_job_needs_no_search(
    controller: Controller,
) -> None:
    first = controller.finished(controller.submit(document()))
    assert first.phase is JobPhase.SUCCEEDED, first.reason
    again = controller.finished(controller.submit(document()))
    assert again.phase is JobPhase.SUCCEEDED, again.reason


@pytest.mark.slow
def test_a_killed_process_restarts_its_worker_while_the_other_one_trains(
    controller: Controller,
) -> None:
    target = {"metric": "accuracy", "goal": 0.999, "max_epochs": 900, "at_batch": 64}
    limits = {**document()["limits"], "workers": 2, "batch": 64}
    key = {"key": "digits-pipeline/killed", "dataset_size": 1437}
    job = controller.submit(document(model=key, target=target, limits=limits))
    controller.wait(lambda: controller.job(job).phase is JobPhase.TRAINING)
    controller.trainers()[-1].kill()
    controller.wait(lambda: any(event.kind == "restart" for event in controller.events(job)))
    # It trains with one worker first, and with both once the other is back.
    controller.wait(lambda: [r.after.workers for r in controller.curve(job).resizes][-2:] == [1, 2])
    assert all(each.iterations_lost in (0, None) for each in controller.curve(job).resizes)
    assert controller.ask("POST", f"/v1/jobs/{job}/actions/cancel").status_code < 300
    assert controller.finished(job).phase is JobPhase.CANCELLED


@pytest.mark.slow  # test_asynchronous_pipeline.py compares every weight
def test_the_example_of_pipedream_goes_on_from_a_checkpoint_and_reaches_its_target(
    controller: Controller, tmp_path: Path
) -> None:
    place = EXAMPLES / "vgg-pipedream"
    read: dict[str, Any] = yaml.safe_load((place / "job.yaml").read_text())
    kept = {"directory": str(tmp_path), "every": "1s"}
    command = {"command": [sys.executable, "train.py"], "directory": str(place)}
    started = controller.submit({**read, "run": {**command, "checkpoints": kept}})
    controller.wait(lambda: controller.job(started).progress.iteration > 100)
    assert any(tmp_path.rglob("*.safetensors"))
    controller.trainers()[-1].kill()  # one of the three takes the others along
    controller.wait(lambda: any(event.kind == "restart" for event in controller.events(started)))
    job = controller.finished(started)
    assert job.phase is JobPhase.SUCCEEDED, job.reason
    said = "".join(each.read_text() for each in (controller.home / "machines").glob("*.log"))
    assert "training continues from iteration" in said
    assert job.progress.metrics["staleness"] == 1


@pytest.mark.slow
def test_two_workers_change_their_layout_and_lose_no_iteration(controller: Controller) -> None:
    """There and back: each change starts all processes again from a checkpoint."""
    target = {"epochs": 20_000, "at_batch": 64}
    layout = {"pipeline": [1, 2], "micro_batches": 2}
    limits = {"max_cost": "5 USD", "workers": 2, "batch": 64, "layout": layout}
    key = {"key": "digits-pipeline/changed", "dataset_size": 1437}
    job = controller.submit(document(model=key, target=target, limits=limits))
    controller.wait(lambda: controller.job(job).phase is JobPhase.TRAINING)
    (told,) = [event for event in controller.events(job) if event.kind == "layouts"]
    (cut,) = (name for name in told.data["layouts"] if name != "P=1 T=1")
    assert Layout.parse(cut).pipeline == 2
    for stack in (cut, "eager"):
        before = controller.job(job).progress.iteration
        wish = {"workers": 2, "global_batch": 64, "stack": stack}
        answer = controller.ask("POST", f"/v1/jobs/{job}/actions/resize", json={"to": wish})
        assert answer.status_code < 300, answer.text

        def has_changed(name: str = stack, former: int = before) -> bool:
            shown, current = controller.job(job), controller.curve(job).current
            return (
                current is not None
                and current.stack == name
                and current.workers == 2
                and shown.progress.iteration > former + 100
            )

        controller.wait(has_changed)
    resizes = controller.curve(job).resizes
    assert {each.after.stack for each in resizes} == {"eager", cut}
    assert all(each.iterations_lost in (0, None) for each in resizes)
    assert controller.ask("POST", f"/v1/jobs/{job}/actions/cancel").status_code < 300
    assert controller.finished(job).phase is JobPhase.CANCELLED


@pytest.mark.slow
def test_two_workers_go_back_from_a_layout_in_which_the_script_fails(
    controller: Controller, tmp_path: Path
) -> None:
    fails = 'if "P=2" in __import__("os").environ.get("SCAVENGER_LAYOUT", ""): raise MemoryError\n'
    script = tmp_path / "train.py"
    script.write_text(
        (EXAMPLE / "train.py").read_text().replace("with worker", f"{fails}with worker")
    )
    layout = {"pipeline": [1, 2], "micro_batches": 2}
    job = controller.submit(
        document(
            model={"key": "digits-pipeline/failing", "dataset_size": 1437},
            target={"epochs": 20_000, "at_batch": 64},
            limits={"max_cost": "5 USD", "workers": 2, "batch": 64, "layout": layout},
            run={"command": [sys.executable, "train.py"], "directory": str(tmp_path)},
        )
    )

    def refused() -> list[str]:
        return [each.message for each in controller.events(job) if each.kind == "stack_refused"]

    controller.wait(lambda: controller.job(job).phase is JobPhase.TRAINING or refused())
    if not refused():  # where one process is the fastest, nothing else tries the other
        (told,) = [event for event in controller.events(job) if event.kind == "layouts"]
        (cut,) = (name for name in told.data["layouts"] if name != "P=1 T=1")
        wish = {"workers": 2, "global_batch": 64, "stack": cut}
        answer = controller.ask("POST", f"/v1/jobs/{job}/actions/resize", json={"to": wish})
        assert answer.status_code < 300, answer.text
        controller.wait(refused)
    before = controller.job(job).progress.iteration
    controller.wait(lambda: controller.job(job).progress.iteration > before + 200)
    shown, curve = controller.job(job), controller.curve(job)
    assert "MemoryError" in refused()[0]
    assert curve.current is not None
    assert (curve.current.workers, curve.current.stack) == (2, "eager")
    assert all(each.iterations_lost in (0, None) for each in curve.resizes)
    assert shown.phase in (JobPhase.TRAINING, JobPhase.PROBING), shown.reason
    assert controller.ask("POST", f"/v1/jobs/{job}/actions/cancel").status_code < 300
    assert controller.finished(job).phase is JobPhase.CANCELLED


def submit_wide(controller: Controller, directory: Path, **limits: Any) -> str:
    """Submit a job that is to find its asynchronous pipeline."""
    job = document(
        model={"key": "wide", "dataset_size": 64},
        target={"epochs": 30, "at_batch": 4},
        limits={"max_cost": "1 USD", "workers": 1, "batch": 4, **limits},
        strategy={"pipedream": {"stages": "auto", "vertical_sync": True}},
        run={"command": [sys.executable, "-c", WIDE], "directory": str(directory)},
    )
    return controller.submit(job)


STAGES_NEED_CORES = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="stages need two cores"
)


@STAGES_NEED_CORES
@pytest.mark.slow
def test_a_job_finds_its_stages_and_keeps_them(controller: Controller, tmp_path: Path) -> None:
    def has_begun(job: str) -> bool:
        shown = controller.job(job)
        assert not shown.phase.is_final, shown.reason
        return shown.progress.iteration > 20

    job = submit_wide(controller, tmp_path)
    controller.wait(lambda: has_begun(job))
    (found,) = (event for event in controller.events(job) if event.kind == "layouts")
    layout = Layout.parse(str(found.data["starts"]))
    assert (layout.is_asynchronous, layout.vertical_sync) == (True, True)
    assert len(controller.trainers()) == layout.processes
    controller.trainers()[-1].kill()
    controller.wait(lambda: any(event.kind == "restart" for event in controller.events(job)))
    ended = controller.finished(job)
    assert ended.phase is JobPhase.SUCCEEDED, ended.reason
    assert ended.progress.metrics["staleness"] == layout.staleness


@STAGES_NEED_CORES
def test_a_job_ends_where_no_pipeline_fits(controller: Controller, tmp_path: Path) -> None:
    ended = controller.finished(submit_wide(controller, tmp_path, process_gib=0.001))
    assert ended.phase is JobPhase.FAILED
    assert ended.progress.iteration == 0
    assert "in a process, which has 0.001 GiB: write strategy: all_reduce" in ended.reason
