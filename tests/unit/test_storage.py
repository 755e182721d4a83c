"""Where a job's machines find its checkpoints."""

from __future__ import annotations

from pathlib import Path

from service.clouds.storage import CheckpointStorage, checkpoint_settings
from tests.builders import document, spec

STORAGE = CheckpointStorage(Path("/srv/scavenger"))


def test_checkpoints_are_kept_by_job_under_the_controllers_home() -> None:
    assert STORAGE.directory("job_1", spec()) == Path("/srv/scavenger/checkpoints/job_1")
    saved = checkpoint_settings(spec())
    assert (saved.every, saved.keep) == (60.0, 3)


def test_or_where_and_as_often_as_the_job_says() -> None:
    checkpoints = {"every": "2m", "keep": 9, "directory": "/data/kept"}
    named = spec(run={**document()["run"], "checkpoints": checkpoints})
    assert STORAGE.directory("job_1", named) == Path("/data/kept/job_1")
    saved = checkpoint_settings(named)
    assert (saved.every, saved.keep) == (120.0, 9)
