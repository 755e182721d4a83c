"""The controller ends in order, or by kill -9 in the middle of a search, which no job notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from scavenger.schemas.jobs import JobPhase
from tests.acceptance.test_digits_job import held
from tests.controller import Controller


@pytest.mark.slow  # `make crash` and `make replicas` kill it more often
def test_training_goes_on_and_the_job_ends_right(open_directory: Path) -> None:
    with Controller(open_directory / "killed" / "home") as controller:
        path = open_directory / "killed" / "held"
        document = held(path)
        document["limits"]["batch"] = [8, 128]  # the corners: the search goes on after the first
        job = controller.submit(document)
        controller.wait(lambda: len(controller.curve(job).probes) >= 1)
        before = controller.job(job)
        trainers = [process.pid for process in controller.trainers()]
        controller.kill()
        assert [process.pid for process in controller.trainers()][: len(trainers)] == trainers
        controller.start()
        after = controller.wait(
            lambda: (
                view
                if (view := controller.job(job)).progress.iteration > before.progress.iteration
                else None
            )
        )
        assert [process.pid for process in controller.trainers()][: len(trainers)] == trainers
        assert not after.phase.is_final
        controller.wait(lambda: controller.curve(job).chosen is not None)
        path.unlink()
        view = controller.finished(job)
        assert view.phase is JobPhase.SUCCEEDED, view.reason
        curve = controller.curve(job)
        assert len(curve.probes) >= 3
        assert all(resize.iterations_lost in (0, None) for resize in curve.resizes)
        launched = [e.data["vm"] for e in controller.events(job) if e.kind == "vm_launched"]
        assert len(launched) == len(set(launched))


def test_the_database_ends_with_its_controller(open_directory: Path) -> None:
    with Controller(open_directory / "stopped" / "home") as controller:
        controller.stop()
        assert controller.process is not None
        assert controller.process.returncode == 0
        assert not (controller.home / "postgres" / "data" / "postmaster.pid").exists()
        controller.start()
