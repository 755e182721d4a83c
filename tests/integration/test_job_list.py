"""Which jobs a list shows, with which fields, and that it is the same compressed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import Engine

from scavenger.schemas.jobs import JobList, JobPhase, JobView
from scavenger.schemas.problems import ProblemView
from service.db import jobs
from tests.builders import NOW, spec
from tests.integration.house import House

PHASES = (JobPhase.PENDING, JobPhase.STARTING, JobPhase.FAILED, JobPhase.CANCELLED)
MODELS, PROJECTS = ("digits", "resnet/cifar"), ("alpha", "beta")
NAMES = ("day", "night")


@pytest.fixture
def stored(house: House, engine: Engine) -> list[dict[str, Any]]:
    """Store jobs of all kinds; returns what is true of each, newest first."""
    draw, facts = Random(7), []
    with engine.begin() as connection:
        for number in range(40):
            fact = {
                "id": f"job_{number:02}",
                "name": draw.choice(NAMES),
                "phase": draw.choice(PHASES),
                "model": draw.choice(MODELS),
                "project": draw.choice(PROJECTS),
                "created_at": NOW + timedelta(minutes=draw.randrange(30)),
            }
            model = {"key": fact["model"], "dataset_size": 1437}
            document = spec(name=fact["name"], model=model)
            jobs.create(
                connection, str(fact["id"]), document, fact["created_at"], str(fact["project"])
            )
            if fact["phase"] is not JobPhase.PENDING:
                jobs.change_outcome(connection, str(fact["id"]), phase=fact["phase"])
            facts.append(fact)
    return sorted(facts, key=lambda one: (one["created_at"], one["id"]), reverse=True)


def ask(house: House, token: str, **query: Any) -> Any:
    return house.ask("GET", "/v1/jobs", token, params=query)


def matches(fact: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return (
        fact["phase"] in wanted.get("phase", PHASES)
        and fact["model"] == wanted.get("model", fact["model"])
        and fact["project"] == wanted.get("project", fact["project"])
        and fact["created_at"] >= wanted.get("since", fact["created_at"])
        and fact["name"].startswith(wanted.get("q", ""))
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_filtered_list_has_what_matches_page_after_page(
    house: House, stored: list[dict[str, Any]], seed: int
) -> None:
    draw = Random(seed)
    choices: dict[str, Any] = {
        "phase": tuple(draw.sample(PHASES, draw.randrange(1, 4))),
        "model": draw.choice(MODELS),
        "project": draw.choice(PROJECTS),
        "since": NOW + timedelta(minutes=draw.randrange(30)),
        "q": draw.choice(NAMES),
    }
    wanted = {name: choices[name] for name in draw.sample(list(choices), draw.randrange(4))}
    query = wanted | ({"phase": ",".join(wanted["phase"])} if "phase" in wanted else {})
    query |= {"since": wanted["since"].isoformat()} if "since" in wanted else {}
    found, place = list[str](), dict[str, str]()
    while True:
        page = ask(house, house.token("viewer", "*"), limit=7, **query, **place)
        assert page.status_code == 200, page.text
        listed = JobList.model_validate_json(page.text)
        found += [job.id for job in listed.jobs if job.id != house.job]
        if listed.next_cursor is None:
            break
        place = {"cursor": listed.next_cursor}
    assert found == [fact["id"] for fact in stored if matches(fact, wanted)]


def test_a_filter_opens_no_other_project(house: House, stored: list[dict[str, Any]]) -> None:
    found = ask(house, house.token("viewer", "alpha"), project="beta").json()
    assert found["jobs"] == []
    own = ask(house, house.token("viewer", "alpha"), limit=200).json()["jobs"]
    assert {job["project"] for job in own} == {"alpha"}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"phase": "done"}, "write phases, separated by commas: pending, starting"),
        ({"phase": "failed,"}, "write phases"),
        ({"fields": "name,prize"}, "write fields of a job, separated by commas: advice, applied"),
        ({"since": "yesterday"}, "valid datetime"),
        ({"since": "2026-01-01T00:00:00"}, "timezone"),
        ({"since": "0.5"}, "write a moment such as"),
        ({"state": "failed"}, 'there is no parameter "state" here'),
    ],
)
def test_a_filter_that_means_nothing_is_refused(
    house: House, query: dict[str, str], words: str
) -> None:
    answer = ask(house, house.token("viewer", "*"), **query)
    assert answer.status_code == 422
    assert words in ProblemView.model_validate_json(answer.text).detail


@pytest.mark.parametrize("seed", range(6))
def test_fields_are_those_of_the_whole_job_and_no_others(
    house: House, stored: list[dict[str, Any]], seed: int
) -> None:
    names = Random(seed).sample(sorted(JobView.model_fields), 5)
    token = house.token("viewer", "*")
    rows = ask(house, token, fields=",".join(names), limit=9).json()
    whole = ask(house, token, limit=9).json()
    clock = {"elapsed"}
    assert [row["id"] for row in rows["jobs"]] == [job["id"] for job in whole["jobs"]]
    assert rows["next_cursor"] == whole["next_cursor"]
    for row, job in zip(rows["jobs"], whole["jobs"], strict=True):
        assert row.keys() == {"id", *names}
        assert {name: row[name] for name in row.keys() - clock} == {
            name: job[name] for name in row.keys() - clock
        }


def test_a_job_shows_its_project(house: House) -> None:
    shown = house.ask("GET", f"/v1/jobs/{house.job}", house.token("viewer", "alpha"))
    assert JobView.model_validate_json(shown.text).project == "alpha"


def test_a_large_answer_is_compressed_for_a_reader_that_takes_it(
    house: House, stored: list[dict[str, Any]]
) -> None:
    token, since = house.token("viewer", "*"), datetime.now(UTC) + timedelta(days=1)
    packed = house.ask("GET", "/v1/jobs", token, headers={"Accept-Encoding": "gzip"})
    plain = house.ask("GET", "/v1/jobs", token, headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(plain.content) / 5
    assert "content-encoding" not in plain.headers
    assert json.loads(packed.content).keys() == json.loads(plain.content).keys()
    small = house.ask("GET", "/v1/jobs", token, params={"since": since.isoformat()})
    assert "content-encoding" not in small.headers
