"""A job that searches its layout: what its first machine profiles, and what the others are told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import TypeAdapter
from sqlalchemy import Engine, insert

from scavenger.cluster import ClusterConfig
from scavenger.layout import Layout
from scavenger.measurement.layout_profile import (
    LAYOUT_PROFILE,
    BlockProfile,
    LayoutProfile,
    LinkSpeed,
)
from scavenger.protocol import MAX_BLOCKS, EnrolmentReply, Role, WorkerSpec
from scavenger.stack import EAGER_NAME
from service.api.dependencies import AppState
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.clouds.storage import CheckpointStorage
from service.db import directives, jobs, layout_profiles, vms
from service.db.layout_profiles import StoredProfile
from service.db.schema import measured_generations
from service.reconciler.actions import PublishDirective, RefuseLayout, SearchAnew
from service.reconciler.apply import record_action
from service.reconciler.plan import plan
from service.state.loader import load_job_states
from tests.builders import HERE, NOW, directive, document, offer
from tests.integration.life import Life, numbered

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)
ENROLLED = TypeAdapter(EnrolmentReply)
MIB = 2**20
BLOCK = BlockProfile("blocks.0", 1e-4, 1e-3, 1e3, 1e4, 100 * MIB)
PROFILE = LayoutProfile(
    tuple(replace(BLOCK, name=f"blocks.{place}") for place in range(4)),
    inside=LinkSpeed(1e-5, 1e10),
    across=LinkSpeed(1e-4, 1.25e9),
    processes_per_machine=2,
    start_seconds=3.0,
)


class Project:
    """The API of a controller, and the jobs of one project."""

    def __init__(self, engine: Engine, client: TestClient) -> None:
        self.engine, self.client = engine, client

    def submit(self, **limits: Any) -> str:
        wanted = document()
        answer = self.client.post(
            "/v1/jobs", json={**wanted, "limits": {**wanted["limits"], **limits}}
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def launch(self, job: str, number: int, role: Role = "worker") -> str:
        worker, now = f"{job}-{role[0]}{number}", datetime.now(UTC)
        with self.engine.begin() as connection:
            vms.record_intent(connection, job, number, offer("0.36"), now, now - now, role=role)
            vms.record_attempt(connection, worker, now, now, f"a-{number}")
        return worker

    def say(self, what: str, token: str, **body: Any) -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        return self.client.post(f"/v1/agent/{what}", json=body, headers=headers)

    def enrol(self, worker: str) -> EnrolmentReply:
        reply = self.say("enrol", KEYS.bootstrap_token(worker), worker=worker, nonce="n")
        assert reply.status_code == 200, reply.text
        return ENROLLED.validate_python(reply.json())

    def enrol_new(self, job: str, number: int = 1) -> tuple[str, str, WorkerSpec]:
        worker = self.launch(job, number)
        reply = self.enrol(worker)
        return worker, reply.token, reply.worker

    def post(self, worker: str, token: str, found: LayoutProfile | None, failure: str = "") -> Any:
        profile = None
        if found is not None:
            profile = LAYOUT_PROFILE.dump_python(found, mode="json", exclude_defaults=True)
        return self.say("profile", token, worker=worker, profile=profile, failure=failure)

    def told(self, job: str) -> list[str]:
        with self.engine.connect() as connection:
            page = jobs.events_after(connection, job, 0, 200)
        return [event.message for event in page if event.kind == "layouts"]

    def stacks(self, job: str) -> list[str]:
        """Return the stacks of the space that the job is planned in."""
        with self.engine.connect() as connection:
            found = jobs.find(connection, job)
            assert found is not None
            (state,) = load_job_states(connection, "local", [found], datetime.now(UTC))
        return [option.name for option in state.knowledge.space.stacks]


@pytest.fixture
def project(engine: Engine, tmp_path: Path) -> Iterator[Project]:
    world = AppState(
        engine, HERE, CheckpointStorage(tmp_path / "checkpoints"), max_startup_seconds=60.0
    )
    app = build_app(world, KEYS)
    headers = {"Authorization": f"Bearer {KEYS.home_token}"}
    with TestClient(app, headers=headers) as client:
        yield Project(engine, client)


def test_the_first_machine_profiles_and_the_others_start_in_its_layout(project: Project) -> None:
    job = project.submit(layout="auto")
    worker, token, told = project.enrol_new(job)
    assert told.profile
    assert project.stacks(job) == [EAGER_NAME]
    answer = project.post(worker, token, PROFILE).json()
    assert answer["refusal"] == ""
    first = project.stacks(job)[0]
    assert first.startswith("P=2 T=1 M=")
    assert project.told(job) == [f"the job starts with {first}, since it is surely faster"]
    _, _, second = project.enrol_new(job, 2)
    assert not second.profile
    assert str(second.layout) == first
    again = project.post(worker, token, replace(PROFILE, processes_per_machine=1)).json()
    assert again == answer, "the first profile stays"
    assert len(project.told(job)) == 1


def test_a_model_that_no_process_holds_is_refused_with_what_is_missing(project: Project) -> None:
    # Four blocks of 100 MiB, their gradients and no slots: 800 MiB, and two stages need half.
    job = project.submit(layout=1, process_gib=0.45)
    worker, token, _ = project.enrol_new(job)
    answer = project.post(worker, token, PROFILE).json()
    assert "bytes are missing" in answer["refusal"]
    # Its later machines ask again, and so do those of a job that takes the profile over.
    assert project.enrol_new(job, 2)[2].profile
    again = project.submit(layout=1, process_gib=0.45)
    assert project.enrol_new(again)[2].profile
    cut = project.submit(layout="auto", process_gib=0.45)
    assert project.enrol_new(cut)[2].layout.pipeline == 2
    (said,) = project.told(cut)
    assert said.startswith("the model was profiled for an earlier job: the job starts with P=2")
    assert "since P=1 T=1 does not fit: a process needs" in said


def test_a_model_without_a_profile_is_not_shared(project: Project) -> None:
    job = project.submit(layout="auto")
    worker, token, _ = project.enrol_new(job)
    answer = project.post(worker, token, None, "it never stepped").json()
    assert answer["layout"]["pipeline"] == 1
    assert project.told(job) == [
        "the model was not profiled, so it is shared by no processes: it never stepped"
    ]
    assert project.stacks(job) == [EAGER_NAME]
    checked = project.submit(layout="auto", process_gib=0.45)
    worker, token, told = project.enrol_new(checked)
    assert told.profile, "a failure is taken over by no job"
    answer = project.post(worker, token, None, "it never stepped").json()
    assert "nothing tells whether the model fits" in answer["refusal"]


def test_the_next_job_takes_the_profile_over_and_plans_with_it(project: Project) -> None:
    first = project.submit(layout="auto")
    worker, token, _ = project.enrol_new(first)
    project.post(worker, token, PROFILE)
    second = project.submit(layout="auto")
    assert project.stacks(second) == project.stacks(first), "before any machine of it came up"
    _, _, told = project.enrol_new(second)
    assert not told.profile
    assert project.stacks(second) == project.stacks(first)
    plain = project.submit()
    assert project.stacks(plain) == [EAGER_NAME]
    assert not project.enrol_new(plain)[2].profile


def test_a_profile_that_is_none_is_refused(project: Project) -> None:
    job = project.submit(layout="auto")
    worker, token, _ = project.enrol_new(job)
    other, _, _ = project.enrol_new(job, 2)
    assert project.post(other, token, PROFILE).status_code == 403
    many = replace(PROFILE, blocks=PROFILE.blocks * MAX_BLOCKS)
    assert project.post(worker, token, many).status_code == 422
    assert project.say("profile", token, worker=worker, profile={}).status_code == 422
    assert project.told(job) == []


def test_what_was_chosen_in_a_layout_that_is_refused_is_searched_anew(engine: Engine) -> None:
    limits = {"max_cost": "1 USD", "workers": "1..2", "batch": [32, 128], "layout": "auto"}
    with engine.begin() as connection:
        life = Life(connection, limits=limits)
        stored = StoredProfile(PROFILE)
        layout_profiles.record(connection, life.job, "default", "any", stored, NOW)
        cut, *others = [option.layout for option in life.look().knowledge.space.stacks]
        life.choose(ClusterConfig(2, 128, stack=str(cut)))
        refusal = RefuseLayout(cut, life.worker(1), "it could not keep its state")
        record_action(connection, "local", life.look(), refusal)
        seen = life.look()
        assert seen.refused_layouts == {cut: "it could not keep its state"}
        assert [option.layout for option in seen.knowledge.space.stacks] == others
        forgotten = plan(seen)
        assert isinstance(forgotten, SearchAnew)
        record_action(connection, "local", seen, forgotten)
        again = life.look()
        assert again.job.chosen is None
        probe = plan(again)
        assert isinstance(probe, PublishDirective)
        assert probe.directive.layout != str(cut)


def test_the_newest_layout_that_bore_an_iteration_is_known(engine: Engine) -> None:
    with engine.begin() as connection:
        life = Life(connection)
        assert directives.newest_trained_layout(connection, life.job) == ""
        life.train(1, ClusterConfig(2, 128), numbered(0, 10, ClusterConfig(2, 128)))
        later = directive(2, 128, generation=2, layout="P=2 T=1")
        directives.publish(connection, life.job, later, NOW)
        assert directives.newest_trained_layout(connection, life.job) == ""
        assert not directives.has_trained_in(connection, life.job, Layout(2))
        row = {"job": life.job, "generation": 2, "first_iteration": 11}
        connection.execute(insert(measured_generations).values(row))
        assert directives.newest_trained_layout(connection, life.job) == "P=2 T=1"
        assert directives.has_trained_in(connection, life.job, Layout(2))
