"""One stored model through the API: its forecasts against what came of them, and forgetting it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Engine

from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.models import ForgottenModelView, ModelDetailView
from service.db import clock, jobs, stored_models
from tests.builders import spec
from tests.integration.house import House

DIGITS = {"key": "digits/mlp", "dataset_size": 1437}


def path_of(signature: str, action: str = "") -> str:
    return f"/v1/models/{quote(signature, safe='')}{action}"


def detail(house: House, signature: str, project: str = "alpha") -> Any:
    return house.ask("GET", path_of(signature), house.token("viewer", project))


@pytest.fixture
def signature(house: House, engine: Engine) -> str:
    """Store a model, and jobs of it: one ended in time, one too late, and one goes on."""
    now = clock.now(engine)
    hour = timedelta(hours=1)
    with engine.begin() as connection:
        for number, late in ((1, 0 * hour), (2, 2 * hour)):
            jobs.create(connection, f"job_{number}", spec(model=DIGITS), now - 9 * hour, "alpha")
            span = {"due_from": now - 5 * hour, "due_until": now - 3 * hour}
            jobs.change_outcome(connection, f"job_{number}", phase=JobPhase.STARTING, **span)
            jobs.change_outcome(connection, f"job_{number}", phase=JobPhase.TRAINING)
            ended = {"phase": JobPhase.SUCCEEDED, "finished_at": now - 4 * hour + late}
            jobs.change_outcome(connection, f"job_{number}", **ended)
        jobs.create(connection, "job_3", spec(model=DIGITS), now, "alpha")
        jobs.create(connection, "job_4", spec(model={**DIGITS, "dataset_size": 9}), now, "alpha")
        jobs.create(connection, "job_5", spec(model=DIGITS), now, "beta")
    return house.model()


def test_forecasts_stand_beside_what_came_of_them(house: House, signature: str) -> None:
    found = ModelDetailView.model_validate_json(detail(house, signature).text)
    assert (found.signature, found.model_key, found.project) == (signature, "digits/mlp", "alpha")
    assert [(each.job, each.is_within) for each in found.forecasts] == [
        ("job_3", None),
        ("job_2", False),
        ("job_1", True),
    ]
    assert found.calibration is not None
    assert (found.calibration.coverage, found.calibration.forecasts) == (0.5, 2)


def test_a_model_of_another_project_is_not_there(house: House, signature: str) -> None:
    assert detail(house, signature, "beta").status_code == 404
    for strange in ("", "nothing", "a\x00b", "\u202e", "x" * 9000):
        assert detail(house, strange).status_code == 404


def test_a_forgotten_model_is_used_and_listed_no_more_until_it_is_learned_anew(
    house: House, signature: str, engine: Engine
) -> None:
    assert (
        house.ask(
            "POST", path_of(signature, "/actions/forget"), house.token("submitter", "alpha")
        ).status_code
        == 403
    )
    operator = house.token("operator", "alpha")
    with engine.connect() as connection:
        stale, before = stored_models.find(connection, "alpha", signature), clock.read(connection)
    assert stale is not None
    answer = house.ask("POST", path_of(signature, "/actions/forget"), operator)
    assert ForgottenModelView.model_validate_json(answer.text).signature == signature
    assert detail(house, signature).status_code == 404
    listed = house.ask("GET", "/v1/models", operator).json()["models"]
    assert signature not in [each["signature"] for each in listed]
    with engine.begin() as connection:
        assert stored_models.find(connection, "alpha", signature) is None
        assert stored_models.known(connection, "alpha", {signature}) == {}
        assert stored_models.recent(connection, "alpha", 9) == ()
    again = house.ask("POST", path_of(signature, "/actions/forget"), operator)
    assert again.status_code == 200
    # A job that read it before it was forgotten stores what it grew to: that is no news.
    with engine.begin() as connection:
        stored_models.store(connection, "alpha", "digits/mlp", stale, before)
    assert detail(house, signature).status_code == 404
    house.model()
    assert detail(house, signature).status_code == 200
