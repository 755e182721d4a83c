"""A job's curve is the one its last choice was made from; later jobs do not change it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Connection, Engine, delete, func, select, update
from sqlalchemy.exc import DBAPIError

from scavenger.cluster import ClusterConfig
from scavenger.schemas.curves import CurveView
from scavenger.schemas.jobs import JobPhase
from service.api.dependencies import AppState
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.clouds.storage import CheckpointStorage
from service.db import curves, jobs, measurements, schema
from service.reconciler.actions import Advise, ChooseConfig, Finish, KeepConfig, Replan
from service.reconciler.apply import record_action
from service.reconciler.plan import plan
from service.state.job_state import JobState
from service.state.loader import load_job_state
from tests.builders import HERE, NOW, observation, probe, steps
from tests.integration.life import CORNERS, Life, numbered

LIMITS = {"max_cost": "1 USD", "workers": "1..2", "batch": [32, 128]}
KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    app = build_app(AppState(engine, HERE, CheckpointStorage(Path("/srv/scavenger"))), KEYS)
    headers = {"Authorization": f"Bearer {KEYS.home_token}"}
    with TestClient(app, headers=headers) as client:
        yield client


def answer(client: TestClient, job: str = "job_1", **parameters: int) -> dict[str, Any]:
    """Return the curve as it was drawn for the choice."""
    asked = {"basis": "decision", **parameters}
    shown = client.get(f"/v1/jobs/{job}/curve", params=asked)
    assert shown.status_code == 200, shown.text
    return dict(shown.json())


def picture(client: TestClient, job: str = "job_1") -> str:
    shown = client.get(f"/v1/jobs/{job}/curve", headers={"Accept": "image/svg+xml"})
    assert shown.headers["content-type"] == "image/svg+xml"
    return shown.text


def begin(connection: Connection, job: str, **document: Any) -> Life:
    """Let a job choose by what it measured or by what is stored, and train on that."""
    life = Life(connection, job, **document)
    choice = plan(life.look())
    if not isinstance(choice, ChooseConfig):
        life.probe()
        choice = plan(life.look())
    assert isinstance(choice, ChooseConfig), choice
    record_action(connection, "local", life.look(), choice)
    life.train(1, choice.run.config, numbered(0, 200, choice.run.config))
    return life


def teach(engine: Engine, number: int) -> None:
    """Let another job of the same model run, on slower machines and to its target at a batch."""
    config = ClusterConfig(2, 128 if number % 2 else 32)
    with engine.begin() as connection:
        life = Life(connection, f"job_{number}", search="partial")
        for corner in CORNERS:
            seen = observation(*corner, compute_time=0.01 * number + 0.001 * corner[1] / corner[0])
            measurements.record_probe(
                connection, life.job, replace(probe(*corner), observation=seen)
            )
        choice = plan(life.look())
        assert isinstance(choice, ChooseConfig)
        record_action(connection, "local", life.look(), choice)
        life.train(1, config, numbered(0, 100 * number, config))
        life.finish(epochs=10.0 + number)


# What tells where a job is now, and follows its life.
OF_NOW = ("current", "switch", "is_finished", "as_of")


def of_the_choice(curve: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in curve.items() if name not in OF_NOW}
    # What a move saves follows from where the job is.
    return {**kept, "points": [{**point, "saving": None} for point in curve["points"]]}


@pytest.mark.parametrize(
    ("search", "is_reused", "later"),
    [("partial", False, 3), ("auto", True, 20), ("universal", True, 3)],
)
def test_the_curve_of_a_finished_job_never_changes(
    client: TestClient, engine: Engine, search: str, later: int, *, is_reused: bool
) -> None:
    if is_reused:
        teach(engine, 2)
    with engine.begin() as connection:
        life = begin(connection, "job_1", search=search)
    trains = answer(client)
    with engine.begin() as connection:
        life.connection = connection
        life.finish()
    ended, drawn = answer(client), picture(client)
    for number in range(3, 3 + later):
        teach(engine, number)
    assert answer(client) == ended
    assert picture(client) == drawn
    assert answer(client, decision=1) == ended
    assert [ended[name] for name in OF_NOW] == [None, None, True, ended["decided_at"]]
    assert of_the_choice(ended) == of_the_choice(trains)


def test_the_reason_and_the_curve_name_the_same_source(client: TestClient, engine: Engine) -> None:
    teach(engine, 2)
    with engine.begin() as connection:
        begin(connection, "job_1").finish()
    curve = answer(client)
    assert curve["why"].startswith("no search: model of 1 earlier job: ")
    assert curve["source"] == "1 earlier job"


def test_limits_that_could_not_be_judged_are_not_judged_afterwards(
    client: TestClient, engine: Engine
) -> None:
    with engine.begin() as connection:
        begin(connection, "job_1", search="partial").finish()
    curve = answer(client)
    assert "the limits cannot be judged" in curve["why"]
    assert curve["basis"] == "relative"


def test_a_job_that_ended_before_it_chose_shows_what_it_measured(
    client: TestClient, engine: Engine
) -> None:
    with engine.begin() as connection:
        life = Life(connection, "job_1", search="partial")
        life.probe()
    searching = answer(client)
    assert searching["decision"] is None
    with engine.begin() as connection:
        record_action(
            connection, "local", life_in(connection), Finish(JobPhase.CANCELLED, "cancelled")
        )
    ended = answer(client)
    assert ended["why"] == "cancelled"
    assert ended["is_finished"] is True
    assert {**of_the_choice(ended), "why": searching["why"]} == of_the_choice(searching)
    for number in range(2, 4):
        teach(engine, number)
        assert answer(client) == ended


def life_in(connection: Connection) -> JobState:
    return load_job_state(connection, "local", "job_1", NOW)


def test_a_choice_made_before_curves_were_stored_is_drawn_from_what_is_known(
    client: TestClient, engine: Engine
) -> None:
    teach(engine, 2)
    with engine.begin() as connection:
        begin(connection, "job_1", search="partial").finish()
        connection.execute(delete(schema.curves))
    before = answer(client)
    assert (before["decision"], before["current"]) == (None, None)
    assert before["as_of"] == NOW.isoformat().replace("+00:00", "Z")
    assert before["why"].startswith("after 4 probes")
    teach(engine, 5)
    assert answer(client)["points"] != before["points"]


def test_a_job_that_is_advised_shows_the_curve_of_its_advice(
    client: TestClient, engine: Engine
) -> None:
    teach(engine, 2)
    with engine.begin() as connection:
        life = Life(connection, "job_1", level="advise")
        measurements.record_probe(connection, life.job, probe(1, 32))
        for kind in (KeepConfig, Advise):
            action = plan(life.look())
            assert isinstance(action, kind)
            record_action(connection, "local", life.look(), action)
    shown = answer(client)
    assert shown["why"].startswith(f"advice: K={shown['knee']['workers']} ")
    assert (shown["decision"], shown["chosen"]) == (
        2,
        {"workers": 1, "global_batch": 32, "stack": "eager"},
    )
    teach(engine, 3)
    assert answer(client) == shown


def test_what_is_chosen_anew_shows_what_was_left(client: TestClient, engine: Engine) -> None:
    small = ClusterConfig(2, 32)
    with engine.begin() as connection:
        target = {"epochs": 600, "at_batch": 32}
        life = Life(connection, "job_1", target=target, limits={**LIMITS, "max_cost": "9 USD"})
        life.probe()
        life.train(1, small, steps(200, 640.0, small))
        life.choose(small)
        again = plan(life.look())
        assert isinstance(again, Replan)
        record_action(connection, "local", life.look(), again)
        left = life.look()
    shown = answer(client)
    assert (shown["basis"], shown["why"]) == ("remaining", again.why)
    assert shown["chosen"] == {"workers": 2, "global_batch": 128, "stack": "eager"}
    assert shown["source"] == "4 probes of this job, and a noise that drifted"
    spent = Decimal(shown["spent"]["cost"])
    assert Decimal(shown["limits"]["max_cost"]) == 9 - spent
    assert float(spent) == pytest.approx(float(left.accrued), abs=1e-8)
    whole = client.get("/v1/jobs/job_1/curve?decision=1").json()
    assert (whole["basis"], whole["limits"]["max_cost"]) == ("total", "9.000000000")
    assert all(isinstance(p["marginal_price"], str | None) for p in shown["points"])
    assert all(Decimal(each["cost"]) > 0 for each in shown["probes"])
    assert shown["points"][0]["epochs"] == pytest.approx(600 - left.epochs, rel=1e-6)


def test_of_many_choices_the_first_and_the_newest_stay_as_they_are(engine: Engine) -> None:
    with engine.begin() as connection:
        life = begin(connection, "job_1", search="partial")
        drawn = curves.newest_curve(connection, life.job)
        assert drawn is not None
        for number in range(2, 41):
            again = drawn.model_copy(update={"why": f"choice {number}"})
            curves.store_curve(connection, life.job, again, NOW)
        found = connection.execute(select(schema.curves.c.number).order_by("number")).scalars()
        assert list(found) == [1, *range(10, 41)]
        assert curves.find_curve(connection, life.job, 9) is None
        listed = curves.decisions_after(connection, life.job, after=0, limit=99)
        assert [each.number for each in listed] == [1, *range(10, 41)]
        newest = curves.newest_curve(connection, life.job)
        assert newest is not None
        assert newest.chosen == listed[-1].chosen == drawn.chosen
        assert (newest.decision, newest.why) == (40, "choice 40")
        step = connection.begin_nested()
        with pytest.raises(DBAPIError, match="cannot change"):
            connection.execute(update(schema.curves).values(points={}))
        step.rollback()


def test_a_job_names_the_knee_where_it_trains_on_another_configuration(
    client: TestClient, engine: Engine
) -> None:
    with engine.begin() as connection:
        life = begin(connection, "job_1", search="partial")
        begin(connection, "job_2", search="partial", objective="cheapest")
        drawn = curves.newest_curve(connection, life.job)
    runs = client.get("/v1/jobs/job_1").json()["applied"]
    assert drawn is not None
    assert runs is not None
    other = {"workers": 1, "global_batch": 32, "stack": "eager"}
    assert runs != other
    for job, knee, bends, told in (
        ("job_1", other, True, other),
        ("job_1", other, False, None),
        ("job_1", runs, True, None),
        ("job_1", None, False, None),
        ("job_2", other, True, None),
    ):
        seen = drawn.model_dump() | {"knee": knee, "knee_bends": bends}
        with engine.begin() as connection:
            curves.store_curve(connection, job, CurveView.model_validate(seen), NOW)
        (row,) = client.get("/v1/jobs", params={"fields": "moved_knee", "q": job}).json()["jobs"]
        assert row == {"id": job, "moved_knee": told}


def test_the_largest_curve_is_small(client: TestClient, engine: Engine) -> None:
    batches = [64, 128, 256, 384, 512, 768, 1024, 2048]
    limits = {"max_cost": "0.02 USD", "workers": "1..50", "batch": batches}
    document = {"limits": limits, "search": "partial", "target": {"epochs": 9, "at_batch": 64}}
    with engine.begin() as connection:
        life = Life(connection, "job_1", **document)
        for corner in ((1, 64), (1, 2048), (50, 2048), (50, 64)):
            measurements.record_probe(connection, life.job, probe(*corner))
        choice = plan(life.look())
        assert isinstance(choice, ChooseConfig)
        record_action(connection, "local", life.look(), choice)
        size = func.pg_column_size(schema.curves.c.points)
        assert connection.execute(select(size)).scalar_one() < 40_000
    shown = answer(client)["points"]
    assert len(shown) == 400
    assert sum(bool(point["violations"]) for point in shown) > 100


def test_every_choice_is_listed_and_its_curve_shown_with_what_was_measured_by_then(
    client: TestClient, engine: Engine
) -> None:
    small = ClusterConfig(2, 32)
    with engine.begin() as connection:
        target = {"epochs": 600, "at_batch": 32}
        life = begin(connection, "job_1", target=target, limits={**LIMITS, "max_cost": "9 USD"})
        first = curves.newest_curve(connection, life.job)
        life.train(2, small, steps(200, 640.0, small))
        again = plan(life.look(after=timedelta(minutes=9)))
        assert isinstance(again, Replan)
        later = life.look(after=timedelta(minutes=9))
        record_action(connection, "local", later, again)
        measurements.record_probe(
            connection, life.job, replace(probe(1, 64), settled_at=NOW + timedelta(minutes=8))
        )
    page = client.get("/v1/jobs/job_1/decisions?limit=1").json()
    one = page["decisions"][0]
    rest = client.get("/v1/jobs/job_1/decisions", params={"cursor": page["next_cursor"]}).json()
    assert first is not None
    assert (one["number"], one["why"], one["basis"]) == (1, first.why, "total")
    assert [(d["number"], d["basis"]) for d in rest["decisions"]] == [(2, "remaining")]
    assert rest["next_cursor"] is None
    shown = {number: answer(client, decision=number) for number in (1, 2)}
    assert [each["why"] for each in shown.values()] == [first.why, again.why]
    assert [len(each["probes"]) for each in shown.values()] == [4, 5]
    assert answer(client) == shown[2]
    refused = client.get("/v1/jobs/job_1/curve?decision=3")
    assert refused.status_code == 404
    assert "GET /v1/jobs/job_1/decisions lists those that are" in refused.json()["detail"]


def test_forecasts_are_judged_by_the_jobs_that_ended_before_the_choice(
    client: TestClient, engine: Engine
) -> None:
    hours = [timedelta(hours=number) for number in range(4)]
    ends = ((hours[1], True), (hours[2], False), (hours[1], True))
    with engine.begin() as connection:
        for number, (ago, held) in enumerate(ends, start=2):
            life = Life(connection, f"job_{number}")
            due = NOW - ago if held else NOW + hours[3]
            facts = {"due_from": due, "due_until": due, "finished_at": NOW - ago}
            jobs.change_outcome(connection, life.job, phase=JobPhase.TRAINING)
            ended = {"phase": JobPhase.SUCCEEDED, **facts}
            jobs.change_outcome(connection, life.job, **ended)
        begin(connection, "job_1", search="partial")
    found = {"coverage": pytest.approx(2 / 3), "forecasts": 3, "is_degraded": False}
    assert answer(client)["calibration"] == found
    assert answer(client, "job_3")["calibration"] is None, "it ended before the others"


# Whether each job ended within its forecast, in order; and the jobs that tell of it.
ENDS = [
    ("+---++", [5]),
    ("------", [5]),
    ("+-+-+-", [6]),
    ("+-+-++", []),
    ("++++++", []),
    ("----", []),
]


@pytest.mark.parametrize(("held", "told_by"), ENDS)
def test_the_job_whose_end_shows_that_forecasts_miss_tells_it_once(
    engine: Engine, held: str, told_by: list[int]
) -> None:
    hour = timedelta(hours=1)
    with engine.begin() as connection:
        for number, mark in enumerate(held, start=1):
            state = Life(connection, f"job_{number}").look()
            end = state.now + number * hour
            span = {"due_from": end, "due_until": end + (hour if mark == "+" else -hour)}
            jobs.change_outcome(connection, state.job.id, phase=JobPhase.TRAINING, **span)
            reached = Finish(JobPhase.SUCCEEDED, "target reached", epochs=None)
            record_action(connection, "local", replace(state, now=end), reached)
    with engine.connect() as connection:
        told = jobs.events_after(connection, None, 0, 999, kinds=frozenset({"degraded"}))
    assert [each.job for each in told] == [f"job_{number}" for number in told_by]
    for each in told:
        assert each.data["coverage"] < 0.6
