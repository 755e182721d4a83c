"""Plans: what is told of a document before anything is spent, and the one job it may become."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
import yaml
from sqlalchemy import Engine, func, select

from scavenger.schemas.curves import CurveView
from scavenger.schemas.plans import PlanView
from service.db import plans, schema
from service.db.measurements import record_probe
from service.reconciler.actions import ChooseConfig
from service.reconciler.apply import record_action
from service.reconciler.plan import plan
from tests.builders import NOW, document, plan_view, probe, spec
from tests.integration.house import JSON, House, code_of
from tests.integration.life import CORNERS, Life, numbered

YAML = {"Content-Type": "application/yaml"}
LIMITS = {"max_cost": "1 USD", "workers": "1..2", "batch": [32, 128]}
COUNTED = {"epochs": 30, "at_batch": 32}


@pytest.fixture
def house(engine: Engine) -> Iterator[House]:
    with ExitStack() as stack:
        yield House(engine, stack)


def make(house: House, token: str = "", **changes: Any) -> PlanView:
    token = token or house.token("submitter", "default")
    answer = house.ask("POST", "/v1/plans", token, json=document(**changes))
    assert answer.status_code == 201, answer.text
    made = PlanView.model_validate_json(answer.text)
    assert house.ask("GET", answer.headers["Location"], token).json() == answer.json()
    return made


def submit(house: House, name: str, **options: Any) -> Any:
    token = house.token("submitter", options.pop("project", "default"))
    return house.ask("POST", "/v1/jobs", token, json={"plan": name}, **options)


def rows(engine: Engine, table: Any) -> int:
    with engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def teach(engine: Engine) -> None:
    """Let a job of the same model choose and reach its target."""
    with engine.begin() as connection:
        life = Life(connection, "job_9", search="partial")
        for corner in CORNERS:
            record_probe(connection, life.job, probe(*corner))
        choice = plan(life.look())
        assert isinstance(choice, ChooseConfig)
        record_action(connection, "local", life.look(), choice)
        life.train(1, choice.run.config, numbered(0, 200, choice.run.config))
        life.finish()


def test_a_first_job_is_told_how_much_it_will_measure_and_nothing_is_launched(
    house: House, engine: Engine
) -> None:
    made = make(house, target=COUNTED)
    assert (made.choice, made.would_reuse, made.curve.points) == (None, 0, [])
    assert made.search is not None
    assert (made.search.probes >= 3, made.search.seconds, made.search.cost) == (True, None, None)
    assert made.why.startswith("a search chooses; first, probe 1 of 3")
    assert made.cap is not None
    assert made.cap.amount == 1
    assert made.expires_at - made.created_at == timedelta(minutes=15)
    assert rows(engine, schema.jobs) == 1, "that of the house"
    assert rows(engine, schema.vms) == 0


def test_a_plan_chooses_what_its_job_then_chooses(house: House, engine: Engine) -> None:
    teach(engine)
    made = make(house, limits=LIMITS)
    assert made.choice is not None
    assert (made.would_reuse, made.search) == (1, None)
    assert made.choice in made.curve.front
    with engine.begin() as connection:
        choice = plan(Life(connection, "job_8", limits=LIMITS).look())
    assert isinstance(choice, ChooseConfig)
    assert (choice.run.config.workers, choice.run.config.global_batch) == (
        made.choice.workers,
        made.choice.global_batch,
    )
    assert choice.why == made.why


def test_a_plan_that_nothing_meets_says_what_would(house: House, engine: Engine) -> None:
    teach(engine)
    made = make(house, limits={**LIMITS, "max_cost": "0.000001 USD"}, target=COUNTED)
    assert (made.choice, made.search, made.is_feasible) == (None, None, False)
    assert made.why.startswith("no configuration meets the limits; the nearest, K=")
    assert made.curve.front == []
    assert f"the limits exclude {len(made.curve.points)} of" in " ".join(made.checks)


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ({"level": "advise"}, "level advise: the job stays on K=1 B=32"),
        (
            {
                "strategy": {"downpour": {"servers": 1}},
                "limits": {"max_cost": "1 USD", "workers": 2, "batch": 32},
            },
            "downpour is not searched: it trains on K=2 B=32",
        ),
    ],
)
def test_a_job_that_is_not_searched_is_told_so(house: House, wish: Any, why: str) -> None:
    made = make(house, **wish)
    assert (made.why, made.search) == (why, None)
    assert made.choice is not None


def test_a_plan_names_every_problem_of_a_document_as_a_submission_does(house: House) -> None:
    token = house.token("submitter", "default")
    wrong = yaml.safe_dump({**document(), "objective": "knees", "limit": {}})
    answers = [
        house.ask("POST", path, token, content=wrong, headers=YAML)
        for path in ("/v1/plans", "/v1/jobs")
    ]
    assert [answer.status_code for answer in answers] == [422, 422]
    planned, submitted = (answer.json()["errors"] for answer in answers)
    assert planned == submitted
    assert len(planned) == 2
    assert all(error["line"] for error in planned)


def test_a_plan_is_submitted_once_and_becomes_exactly_its_job(house: House, engine: Engine) -> None:
    made = make(house, name="planned")
    first, again = submit(house, made.id), submit(house, made.id)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["Location"] == first.headers["Location"]
    assert first.json()["spec"] == spec(name="planned").document()
    assert rows(engine, schema.jobs) == 2
    shown = house.ask("GET", f"/v1/plans/{made.id}", house.token("viewer", "default"))
    assert shown.json()["job"] == first.json()["id"]
    ask = {"json": document(name="planned"), "headers": {"Idempotency-Key": "of-a-plan"}}
    token = house.token("submitter", "default")
    twice = [house.ask("POST", "/v1/plans", token, **ask) for _ in range(2)]
    assert [answer.status_code for answer in twice] == [201, 201], twice[0].text
    assert len({answer.json()["id"] for answer in twice}) == 1
    named = {"Idempotency-Key": "k"}
    keyed = [submit(house, each, headers=named) for each in (make(house).id, made.id)]
    assert [each.status_code for each in keyed] == [201, 422]


def test_a_plan_expires_but_the_job_it_became_is_still_found(house: House) -> None:
    old, used = make(house).id, make(house).id
    assert submit(house, used).status_code == 201
    later = house.open(timedelta(minutes=16))
    mine = {"Authorization": f"Bearer {house.token('submitter', 'default')}"}
    expired = later.post("/v1/jobs", json={"plan": old}, headers=mine)
    assert (expired.status_code, code_of(expired)) == (410, "plan_expired")
    assert "plan the document again" in expired.json()["detail"]
    assert later.post("/v1/jobs", json={"plan": used}, headers=mine).status_code == 200


def test_plans_that_expired_a_day_ago_are_dropped(engine: Engine) -> None:
    with engine.begin() as connection:
        for number, age in enumerate((0, 1, 2)):
            then = NOW - timedelta(days=age)
            view = plan_view(id=f"plan_{number}", expires_at=then)
            plans.store(connection, "default", spec(), view, then)
        plans.store(connection, "default", spec(), plan_view(id="plan_3"), NOW + timedelta(hours=1))
        kept = connection.execute(select(schema.plans.c.id).order_by("id")).scalars()
        assert list(kept) == ["plan_0", "plan_3"]


def test_a_plan_of_another_project_is_not_there(house: House) -> None:
    made = make(house, house.token("submitter", "beta"))
    strange, nowhere = submit(house, made.id), submit(house, "plan_nowhere")
    assert (strange.status_code, nowhere.status_code) == (404, 404)
    facts = [answer.json() | {"request_id": ""} for answer in (strange, nowhere)]
    assert facts[0] == facts[1]
    assert submit(house, made.id, project="beta").status_code == 201


@pytest.mark.parametrize(
    "body", ['{"plan": 1}', '{"plan": "plan_1", "name": "x"}', '{"plan": "job_1"}', '{"plan"']
)
def test_what_names_no_plan_is_refused_with_the_way_to_write_it(house: House, body: str) -> None:
    token = house.token("submitter", "default")
    answer = house.ask("POST", "/v1/jobs", token, content=body, headers=JSON)
    assert answer.status_code == 422
    assert 'submit a plan with {"plan": "plan_..."}' in answer.json()["detail"]


def test_what_if_shows_another_curve_and_stores_nothing(house: House, engine: Engine) -> None:
    teach(engine)
    with engine.begin() as connection:
        life = Life(connection, "job_1", limits=LIMITS)
        choice = plan(life.look())
        assert isinstance(choice, ChooseConfig)
        record_action(connection, "local", life.look(), choice)

    def ask(**question: Any) -> CurveView:
        answer = house.ask(
            "POST", "/v1/jobs/job_1/curve/whatif", house.token("viewer", "default"), json=question
        )
        assert answer.status_code == 200, answer.text
        return CurveView.model_validate_json(answer.text)

    drawn = "/v1/jobs/job_1/curve?basis=decision"
    before = house.ask("GET", drawn, house.token("viewer", "default")).json()
    written = house.written()
    now = CurveView.model_validate(before)
    dearer = ask(price="0.72 USD/h")
    assert [float(p.cost) for p in dearer.points] == pytest.approx(
        [2 * float(p.cost) for p in now.points], rel=1e-5
    )
    more = ask(workers=[1, 2, 4], limits={"batch": [32, 64, 128]})
    assert {p.workers for p in more.points} == {1, 2, 4}
    assert {p.global_batch for p in more.points} == {32, 64, 128}
    assert any(p.source == "extrapolated" for p in more.points if p.workers == 4)
    assert ask(objective="fastest").chosen == now.fastest
    tight = ask(limits={"max_time": "1s", "max_cost": None})
    assert (tight.chosen, tight.front, tight.limits and tight.limits.max_cost) == (None, [], None)
    assert "no configuration meets the limits" in tight.why
    after = house.ask("GET", drawn, house.token("viewer", "default")).json()
    assert after == before
    for wrong, where in (
        ({"workers": [0]}, "workers"),
        ({"objective": "best"}, "objective"),
        ({"limits": {"batch": [1]}, "workers": [2]}, "batch"),
        ({"prices": "1 USD/h"}, "prices"),
    ):
        answer = house.ask(
            "POST", "/v1/jobs/job_1/curve/whatif", house.token("viewer", "default"), json=wrong
        )
        assert answer.status_code == 422
        assert where in json.dumps(answer.json()["errors"])
    assert house.written() == written
