"""Where a job's machines find its checkpoints."""

from __future__ import annotations

from pathlib import Path

from service.clouds.storage import CheckpointStorage
from tests.builders import document, spec

STORAGE = CheckpointStorage(Path("/srv/scavenger"))


def test_checkpoints_are_kept_by_job_under_the_controllers_home() -> None:
    assert STORAGE.environment("job_1", spec()) == {
        "SCAVENGER_CHECKPOINTS": "/srv/scavenger/checkpoints/job_1",
        "SCAVENGER_CHECKPOINT_EVERY": "60.0",
        "SCAVENGER_CHECKPOINT_KEEP": "3",
    }


def test_or_where_and_as_often_as_the_job_says() -> None:
    checkpoints = {"every": "2m", "keep": 9, "directory": "/data/kept"}
    named = spec(run={**document()["run"], "checkpoints": checkpoints})
    assert STORAGE.environment("job_1", named) == {
        "SCAVENGER_CHECKPOINTS": "/data/kept/job_1",
        "SCAVENGER_CHECKPOINT_EVERY": "120.0",
        "SCAVENGER_CHECKPOINT_KEEP": "9",
    }
