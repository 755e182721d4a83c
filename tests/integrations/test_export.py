"""What is exported, read back by MLflow and TensorBoard themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from scavenger.cli.export import points_of, write_mlflow, write_tensorboard
from scavenger.schemas.jobs import JobPhase
from tests.builders import NOW
from tests.unit.test_cli_rendering import job_view
from tests.unit.test_export import telemetry


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    job = job_view(created_at=NOW)
    place = write_tensorboard(tmp_path, job, points_of(job, telemetry()))
    read = EventAccumulator(str(place.parent)).Reload()
    tags = ["a@b", "loss", "step_time/largest", "step_time/least"]
    assert sorted(read.Tags()["scalars"]) == tags
    losses = [(each.step, each.value, each.wall_time) for each in read.Scalars("loss")]
    begun = NOW.timestamp()
    assert losses == [(0, 2.0, begun), (10, 1.5, begun + 10), (30, 1.0, begun + 30)]


def test_mlflow_reads_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    job = job_view(JobPhase.SUCCEEDED, created_at=NOW)
    write_mlflow(tmp_path, job, points_of(job, telemetry()))
    client = MlflowClient(tracking_uri=tmp_path.as_uri())
    (run,) = client.search_runs(["0"])
    assert run.info.run_name == job.name
    assert run.info.status == "FINISHED"
    assert run.data.tags["scavenger.job"] == job.id
    assert run.data.params["phase"] == "succeeded"
    assert run.data.metrics["loss"] == 1.0
    losses = [
        (each.step, each.value) for each in client.get_metric_history(run.info.run_id, "loss")
    ]
    assert losses == [(0, 2.0), (10, 1.5), (30, 1.0)]
    assert client.get_experiment("0").name == "Default"
