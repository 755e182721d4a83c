"""The API on a real database: what it stores, what it refuses, and in which words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import TypeAdapter
from sqlalchemy import Engine, func, select

from scavenger.cluster import ClusterConfig
from scavenger.measurement.steps import StepColumns
from scavenger.protocol import Member, NotFinite, Progress, Regrouped, StepReport
from scavenger.schemas.curves import CurveView
from scavenger.schemas.events import EventList
from scavenger.schemas.jobs import AdviceView, JobList, JobPhase, JobView
from scavenger.schemas.problems import ProblemView
from service.api.dependencies import AppState
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.clouds.storage import CheckpointStorage
from service.db import directives, jobs, measurements, telemetry, vms, workers
from service.db.schema import jobs as jobs_table
from service.state.loader import load_knowledge
from tests.builders import HERE, NOW, directive, document, offer, probe

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)
REPORT = TypeAdapter(StepReport)


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    app = build_app(AppState(engine, HERE, CheckpointStorage(Path("/srv/scavenger"))), KEYS)
    headers = {"Authorization": f"Bearer {KEYS.home_token}"}
    with TestClient(app, headers=headers, raise_server_exceptions=False) as client:
        yield client


def stored(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(jobs_table)).scalar_one()


def submit(client: TestClient, **changes: Any) -> JobView:
    answer = client.post("/v1/jobs", json=document(**changes))
    assert answer.status_code == 201, answer.text
    return JobView.model_validate_json(answer.text)


def test_a_submitted_job_is_pending_and_listed(client: TestClient) -> None:
    job = submit(client)
    assert job.phase is JobPhase.PENDING
    assert job.cost.cap is not None
    assert job.cost.cap.amount == 1
    listed = JobList.model_validate_json(client.get("/v1/jobs").text)
    assert [entry.id for entry in listed.jobs] == [job.id]
    events = EventList.model_validate_json(client.get(f"/v1/jobs/{job.id}/events").text)
    assert [event.kind for event in events.events] == ["submitted"]


def test_yaml_is_understood_too(client: TestClient) -> None:
    text = json.dumps(document())
    answer = client.post(
        "/v1/jobs", content=text, headers={"Content-Type": "application/yaml; charset=utf-8"}
    )
    assert answer.status_code == 201


def test_pages_follow_each_other_without_gap_or_repeat(client: TestClient) -> None:
    made = [submit(client, name=f"job-{number}").id for number in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    while len(seen) < 10:
        query = {"limit": 2} | ({} if cursor is None else {"cursor": cursor})
        page = JobList.model_validate_json(client.get("/v1/jobs", params=query).text)
        seen += [job.id for job in page.jobs]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == made[::-1]


NONSENSE = {
    "an empty range of workers": (
        document(limits={"workers": "4..1", "batch": [32]}),
        "/limits/workers",
        ["4..1"],
    ),
    "batch below workers": (
        document(limits={"workers": "8..16", "batch": [4]}),
        "/limits/batch",
        ["4", "8", "write a batch of at least 8"],
    ),
    "an unknown key": (
        document(limits={"workers": "1..2", "batch": [32], "max_cots": "1 USD"}),
        "/limits/max_cots",
        ["max_cots", "did you mean max_cost"],
    ),
    "a shell string": (
        document(run={"command": "python train.py"}),
        "/run/command",
        ["python train.py", "write a list"],
    ),
    "a missing price": ({k: v for k, v in document().items() if k != "price"}, "/price", ["USD/h"]),
}


@pytest.mark.parametrize(("body", "pointer", "words"), NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused_with_field_value_and_remedy(
    client: TestClient, engine: Engine, body: dict[str, Any], pointer: str, words: list[str]
) -> None:
    answer = client.post("/v1/jobs", json=body)
    problem = ProblemView.model_validate_json(answer.text)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    found = [error for error in problem.errors if error.pointer == pointer]
    assert found, problem
    assert all(word in found[0].message for word in words), found
    assert stored(engine) == 0


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_not_finite_is_refused_with_its_place(
    client: TestClient, engine: Engine, value: str
) -> None:
    text = json.dumps(document()).replace("0.97", value)
    answer = client.post("/v1/jobs", content=text, headers={"Content-Type": "application/json"})
    problem = ProblemView.model_validate_json(answer.text)
    assert (answer.status_code, problem.code) == (422, "validation")
    assert [error.pointer for error in problem.errors] == ["/target/goal"]
    assert problem.errors[0].line == 1
    assert stored(engine) == 0


@pytest.mark.parametrize("is_declared", [True, False], ids=["declared", "streamed"])
def test_a_body_of_two_megabytes_is_refused(
    client: TestClient, engine: Engine, is_declared: bool
) -> None:
    content = b" " * 2_000_000
    pieces = content if is_declared else iter([content[:1_000_000], content[1_000_000:]])
    answer = client.post("/v1/jobs", content=pieces, headers={"Content-Type": "application/json"})
    problem = ProblemView.model_validate_json(answer.text)
    assert (answer.status_code, problem.code) == (413, "payload_too_large")
    assert "2000000 bytes; at most 1048576" in problem.detail
    assert stored(engine) == 0


BODIES = {
    "binary": b"\xff\xfe\x00",
    "not json": b"{",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "null": b"null",
    "text with NUL": b'{"name": "a\\u0000b"}',
    "lone surrogate": b'{"name": "\\ud800"}',
    "huge integer": b'{"model": {"key": "x", "dataset_size": 1' + b"0" * 40 + b"}}",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_what_is_not_a_job_is_refused(client: TestClient, engine: Engine, body: bytes) -> None:
    answer = client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert stored(engine) == 0


def test_another_language_is_refused(client: TestClient) -> None:
    answer = client.post("/v1/jobs", content="<job/>", headers={"Content-Type": "text/xml"})
    assert answer.status_code == 415


@pytest.mark.parametrize("path", ["/v1/jobs/job_x", "/v1/jobs/job_x/curve", "/v1/jobs/%00/events"])
def test_an_unknown_job_is_not_found(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_cancelling_is_a_wish_and_not_possible_after_the_end(
    client: TestClient, engine: Engine
) -> None:
    job = submit(client).id
    assert client.post(f"/v1/jobs/{job}/actions/cancel").status_code == 202
    with engine.begin() as connection:
        found = jobs.find(connection, job)
        assert found is not None
        assert found.cancel_requested_at is not None
        jobs.change_outcome(connection, job, phase=JobPhase.CANCELLED, reason="over")
    assert client.post(f"/v1/jobs/{job}/actions/cancel").status_code == 409


class Agent:
    """A worker of a job, speaking for itself over HTTP."""

    def __init__(self, client: TestClient, engine: Engine, **changes: Any) -> None:
        self.client = client
        self.job = submit(client, **changes).id
        with engine.begin() as connection:
            now, prepaid = datetime.now(UTC), timedelta(seconds=60)
            vms.record_intent(connection, self.job, 1, offer("0.36"), now, prepaid)
        self.worker = f"{self.job}-w1"
        self.headers = {
            "Authorization": f"Bearer {KEYS.issue_worker_token(self.worker)}",
            "Content-Type": "application/json",
        }

    def say(self, what: str, body: Any) -> Any:
        content = body if isinstance(body, str | bytes) else json.dumps(body)
        return self.client.post(f"/v1/agent/{what}", content=content, headers=self.headers)

    def hello(self) -> Any:
        return self.say("hello", {"worker": self.worker, "address": "127.0.0.1:1"})

    def report(self, sequence: int, rows: int, **changes: Any) -> Any:
        steps = StepColumns(
            *(tuple(range(sequence, sequence + rows)), (2,) * rows),
            *(((1.0,) * rows,) * 6),
        )
        progress = Progress(1, sequence + rows, 0, 0.0, {})
        message = StepReport(self.worker, progress, sequence, steps, **changes)
        return self.say("report", REPORT.dump_json(message))


@pytest.fixture
def agent(client: TestClient, engine: Engine) -> Agent:
    return Agent(client, engine)


def test_each_row_is_stored_once_when_any_is_sent_again(agent: Agent, engine: Engine) -> None:
    assert agent.hello().json()["next_sequence"] == 0
    assert agent.report(0, 5).json()["next_sequence"] == 5
    assert agent.report(0, 5).json()["next_sequence"] == 5
    assert agent.report(3, 5).json()["next_sequence"] == 8
    with engine.connect() as connection:
        columns = telemetry.steps_of(connection, agent.job, 1)
    assert columns.iteration == tuple(range(8))


def test_rows_that_never_arrive_are_counted_and_do_not_stop_the_rest(
    client: TestClient, agent: Agent
) -> None:
    agent.hello()
    assert agent.report(0, 5).json()["next_sequence"] == 5
    assert agent.report(9, 3).json()["next_sequence"] == 12
    events = EventList.model_validate_json(client.get(f"/v1/jobs/{agent.job}/events").text)
    lost = [event.message for event in events.events if event.kind == "rows_lost"]
    assert lost == [f"4 measured iterations of {agent.worker} never arrived"]


def test_a_job_that_is_over_gets_no_more_time(agent: Agent, engine: Engine) -> None:
    agent.hello()
    with engine.begin() as connection:
        jobs.change_outcome(connection, agent.job, phase=JobPhase.CANCELLED, reason="over")
    assert agent.say("lease", "{}").json()["remaining"] <= 60


WRONG = {
    "address": ("hello", '{"worker": "%s", "address": "a\\u0000b"}'),
    "metric": (
        "report",
        '{"worker": "%s", "progress": {"generation": 1, "iteration": 1, "samples": 1,'
        ' "epochs": 1, "metrics": {"a\\u0000": 1}}}',
    ),
    "exit code": ("exit", '{"worker": "%s", "code": 99999999999, "tail": ""}'),
}


@pytest.mark.parametrize(("what", "body"), WRONG.values(), ids=WRONG)
def test_what_the_database_could_not_hold_is_refused(agent: Agent, what: str, body: str) -> None:
    agent.hello()
    assert agent.say(what, body.replace("%s", agent.worker)).status_code == 422


@pytest.mark.parametrize("cursor", ["x", "%00", "W10=", "[" * 3_000, "é"])
def test_a_cursor_that_was_not_given_is_refused(client: TestClient, cursor: str) -> None:
    assert client.get("/v1/jobs", params={"cursor": cursor}).status_code == 422


def test_the_answer_carries_the_newest_directive(agent: Agent, engine: Engine) -> None:
    agent.hello()
    with engine.begin() as connection:
        for generation in (1, 2):
            told = directive(2, 128, generation=generation)
            directives.publish(connection, agent.job, told, NOW)
    answer = agent.report(0, 1, regrouped=Regrouped(2, 0.05, 0)).json()
    assert answer["directive"]["generation"] == 2
    config = answer["directive"]["config"]
    assert (config["workers"], config["global_batch"]) == (2, 128)


def test_a_worker_speaks_for_itself_only(agent: Agent) -> None:
    agent.hello()
    body = {"worker": "job_2-w1", "address": "127.0.0.1:1"}
    assert agent.say("hello", body).status_code == 403


def test_a_machine_that_is_gone_is_not_heard(agent: Agent, engine: Engine) -> None:
    agent.hello()
    with engine.begin() as connection:
        vms.record_gone(connection, agent.worker, NOW)
    assert agent.report(0, 1).status_code == 403


def test_the_leaders_readings_of_the_metric_make_a_thin_learning_curve(
    agent: Agent, engine: Engine
) -> None:
    def told(leader: str, generation: int) -> None:
        members = (Member(leader, "127.0.0.1:1"),)
        told = replace(directive(1, 32, generation=generation), members=members)
        with engine.begin() as connection:
            directives.publish(connection, agent.job, told, NOW)

    def say(epochs: float, **metrics: float) -> None:
        report = StepReport(agent.worker, Progress(1, 0, 0, epochs, metrics), 0)
        assert agent.say("report", REPORT.dump_json(report)).status_code == 200

    agent.hello()
    say(0.1, accuracy=0.1)  # before a worker leads
    told(agent.worker, 1)
    say(0.0, accuracy=0.1)
    say(0.5, loss=1.0)
    say(1.0, accuracy=0.5)
    say(1.04, accuracy=0.55)  # too soon
    say(1.1, accuracy=0.5)  # the same value again
    say(1.2, accuracy=0.6)
    say(20.0, accuracy=0.8)
    say(20.5, accuracy=0.81)  # too soon: training may take 60 epochs
    say(20.7, accuracy=0.82)
    say(3.0, accuracy=0.7)  # went back
    told("job-w2", 2)
    say(30.0, accuracy=0.9)  # another leads
    with engine.connect() as connection:
        curve = measurements.readings_of_jobs(connection, [agent.job])[agent.job]
        job = jobs.find(connection, agent.job)
        assert job is not None
        assert (
            load_knowledge(connection, "local", [job], {job.id: ()}, {}, {})[job.id].metric_history
            == curve
        )
    assert curve == ((1.0, 0.5), (1.2, 0.6), (20.0, 0.8), (20.7, 0.82))


def test_what_is_not_finite_is_told_once_for_a_job_and_series(
    client: TestClient, agent: Agent, engine: Engine
) -> None:
    second = Agent.__new__(Agent)
    second.client, second.job, second.worker = client, agent.job, f"{agent.job}-w2"
    second.headers = {
        **agent.headers,
        "Authorization": f"Bearer {KEYS.issue_worker_token(second.worker)}",
    }
    members = tuple(Member(each.worker, "127.0.0.1:1") for each in (agent, second))
    with engine.begin() as connection:
        now, prepaid = datetime.now(UTC), timedelta(seconds=60)
        vms.record_intent(connection, agent.job, 2, offer("0.36"), now, prepaid)
        told = replace(directive(2, 32), members=members)
        directives.publish(connection, agent.job, told, NOW)

    def say(speaker: Agent, **odd: NotFinite) -> None:
        progress = Progress(1, 50, 0, 1.0, {"accuracy": 0.5}, odd)
        body = REPORT.dump_json(StepReport(speaker.worker, progress))
        assert speaker.say("report", body).status_code == 200

    agent.hello()
    second.hello()
    say(second, rare=NotFinite("NaN", 3, 3))
    say(second, loss=NotFinite("-Infinity", 40, 40))
    say(agent, loss=NotFinite("NaN", 41, 41))
    say(agent, loss=NotFinite("NaN", 41, None), accuracy=NotFinite("NaN", 45, 45))
    say(agent, loss=NotFinite("NaN", 41, 60), accuracy=NotFinite("NaN", 45, 45))
    events = EventList.model_validate_json(client.get(f"/v1/jobs/{agent.job}/events").text)
    said = [event for event in events.events if event.kind == "not_finite"]
    assert [event.message.partition(";")[0] for event in said] == [
        f"loss became -Infinity at iteration 40 on {second.worker}",
        f"accuracy became NaN at iteration 45 on {agent.worker}",
    ]
    assert said[0].data == {
        "series": "loss",
        "value": "-Infinity",
        "iteration": 40,
        "worker": second.worker,
    }
    shown = JobView.model_validate_json(client.get(f"/v1/jobs/{agent.job}").text)
    assert shown.progress.metrics == {"accuracy": 0.5}
    assert shown.progress.diverged == (
        f"loss became -Infinity at iteration 40 on {second.worker} and has not been finite since; "
        f"accuracy became NaN at iteration 45 on {agent.worker} and has not been finite since"
    )
    assert not shown.diverged
    with engine.connect() as connection:
        assert measurements.readings_of_jobs(connection, [agent.job])[agent.job] == ((1.0, 0.5),)


POISON = {
    "nan": '"loss": [NaN]',
    "infinity": '"loss": [1e999]',
    "text": '"loss": ["x"]',
    "length": '"loss": []',
    "huge": '"iteration": [' + "9" * 40 + "]",
}


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON)
def test_a_poisoned_row_is_refused_and_never_stored(
    agent: Agent, engine: Engine, poison: str
) -> None:
    agent.hello()
    message = REPORT.dump_json(
        StepReport(
            agent.worker,
            Progress(1, 1, 1, 0.1, {}),
            0,
            StepColumns((1,), (2,), (1.0,), (1.0,), (1.0,), (1.0,), (1.0,), (1.0,)),
        )
    ).decode()
    name = poison.partition(":")[0]
    before = '"loss":[1.0]' if name == '"loss"' else '"iteration":[1]'
    answer = agent.say("report", message.replace(before, poison))
    if name == '"loss"' and poison.endswith("[]"):
        assert answer.status_code == 422, answer.text
    else:
        assert [row["sequence"] for row in answer.json()["rejected"]] == [0], answer.text
    with engine.connect() as connection:
        assert len(telemetry.steps_of(connection, agent.job, 1)) == 0
    assert agent.report(1, 1).json()["accepted"] == 1


def test_a_lease_is_extended_and_never_past_the_cap(agent: Agent, engine: Engine) -> None:
    agent.hello()
    remaining = agent.say("lease", "{}").json()["remaining"]
    assert 590 < remaining <= 600
    with engine.connect() as connection:
        machines = vms.of_job(connection, agent.job)
    from service import ledger

    assert ledger.committed(machines) <= 1


def test_the_curve_shows_probes_points_and_special_ones(
    client: TestClient, agent: Agent, engine: Engine
) -> None:
    with engine.begin() as connection:
        for workers, batch in ((1, 32), (1, 128), (2, 128), (2, 32)):
            measurements.record_probe(connection, agent.job, probe(workers, batch))
        directives.publish(connection, agent.job, directive(2, 128), NOW)
        jobs.change_outcome(connection, agent.job, chosen=ClusterConfig(2, 32), choice="knee")
    curve = CurveView.model_validate_json(client.get(f"/v1/jobs/{agent.job}/curve").text)
    assert curve.basis == "relative"
    assert len(curve.points) == 4
    assert len(curve.probes) == 4
    assert curve.laws is not None
    assert curve.laws.mean_relative_error < 0.01
    on_front = [(p.workers, p.global_batch) for p in curve.points if p.on_front]
    assert curve.knee is not None
    assert (curve.knee.workers, curve.knee.global_batch) in on_front
    assert all(p.time_low <= p.time <= p.time_high for p in curve.points)
    # Both widen alike; costs are written to a millionth of a dollar.
    assert all(
        float(p.cost_high / p.cost) == pytest.approx(p.time_high / p.time, rel=1e-3)
        for p in curve.points
    )
    assert curve.chosen == curve.knee
    assert curve.support is not None
    assert 0.5 < curve.support <= 1
    assert curve.laws.law == "e ∝ 1 + B/B_crit"
    assert [r.after.workers for r in curve.resizes] == [2]


def test_what_is_asked_for_is_shown_in_words_and_supports_nothing_else(
    client: TestClient, engine: Engine
) -> None:
    job = submit(client, objective={"time_weight": 0.7}, laws="paper").id
    with engine.begin() as connection:
        for workers, batch in ((1, 32), (1, 128), (2, 128), (2, 32)):
            measurements.record_probe(connection, job, probe(workers, batch))
    curve = CurveView.model_validate_json(client.get(f"/v1/jobs/{job}/curve").text)
    assert curve.objective == "optimum at time 70%, cost 30%"
    assert (curve.support, curve.runner_up) == (None, None)
    assert curve.laws is not None
    assert curve.laws.law == "e ∝ γ/K = n0 + n1/√B"
    assert curve.laws.noise_per_root is not None


def test_the_forecast_is_what_is_spent_and_what_is_left(
    client: TestClient, agent: Agent, engine: Engine
) -> None:
    job = submit(client, target={"epochs": 10, "at_batch": 32}).id
    with engine.begin() as connection:
        for workers, batch in ((1, 32), (1, 128), (2, 128), (2, 32)):
            measurements.record_probe(connection, job, probe(workers, batch))
        jobs.change_outcome(connection, job, chosen=ClusterConfig(1, 32), choice="cheapest")
    shown = JobView.model_validate_json(client.get(f"/v1/jobs/{job}").text)
    curve = CurveView.model_validate_json(client.get(f"/v1/jobs/{job}/curve").text)
    whole = next(p.cost for p in curve.points if (p.workers, p.global_batch) == (1, 32))
    assert shown.cost.forecast is not None
    assert float(shown.cost.forecast.amount) == pytest.approx(float(whole), abs=1e-6)
    with engine.begin() as connection:
        jobs.change_outcome(connection, job, phase=JobPhase.TRAINING)
        jobs.change_outcome(connection, job, phase=JobPhase.SUCCEEDED, reason="over")
    done = JobView.model_validate_json(client.get(f"/v1/jobs/{job}").text)
    assert done.cost.forecast is None


def test_a_server_that_says_hello_again_and_again_is_news_once(
    client: TestClient, agent: Agent
) -> None:
    for address in ("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:2"):
        body = {"worker": agent.worker, "address": address, "role": "server"}
        assert agent.say("hello", body).status_code == 200
    events = EventList.model_validate_json(client.get(f"/v1/jobs/{agent.job}/events").text)
    assert [event.kind for event in events.events].count("hello") == 2


def test_a_job_shows_its_advice_and_where_its_checkpoints_are(
    client: TestClient, engine: Engine
) -> None:
    def shown() -> JobView:
        return JobView.model_validate_json(client.get(f"/v1/jobs/{job}").text)

    job = submit(client, level="advise").id
    assert shown().checkpoints == f"/srv/scavenger/checkpoints/{job}"
    assert shown().advice is None
    with engine.begin() as connection:
        jobs.change_outcome(connection, job, advised=ClusterConfig(2, 128), advice="cheaper")
    advice = shown().advice
    assert advice is not None
    assert advice.config is not None
    assert (advice.config.workers, advice.config.global_batch, advice.why) == (2, 128, "cheaper")
    with engine.begin() as connection:
        jobs.change_outcome(connection, job, advised=None, advice="nothing is cheap enough")
    assert shown().advice == AdviceView(config=None, why="nothing is cheap enough")


def test_the_forecast_of_downpour_carries_on_as_it_went_so_far(
    client: TestClient, engine: Engine
) -> None:
    one = {"workers": 1, "batch": 32}
    target = {"epochs": 10, "at_batch": 32}
    agent = Agent(client, engine, strategy="downpour", limits=one, target=target)
    agent.hello()
    before = JobView.model_validate_json(client.get(f"/v1/jobs/{agent.job}").text)
    assert before.cost.forecast is None
    message = StepReport(agent.worker, Progress(1, 40, 1280, 2.5, {}))
    assert agent.say("report", REPORT.dump_json(message)).status_code == 200
    view = JobView.model_validate_json(client.get(f"/v1/jobs/{agent.job}").text)
    assert view.cost.forecast is not None
    spent = float(view.cost.accrued.amount)
    assert float(view.cost.forecast.amount) == pytest.approx(4 * spent, abs=1e-5)


def end(agent: Agent, **changes: Any) -> None:
    body = {"worker": agent.worker, "code": -9, "tail": "step 8\x00", **changes}
    assert agent.say("exit", body).status_code == 200


def test_a_command_that_starts_again_is_told_and_has_lost_its_state(
    client: TestClient, agent: Agent, engine: Engine
) -> None:
    agent.hello()
    report = StepReport(agent.worker, Progress(3, 40, 1280, 2.5, {}), finished="target")
    assert agent.say("report", REPORT.dump_json(report)).status_code == 200
    end(agent, cause="out of memory", restarts=True)
    with engine.connect() as connection:
        (vm,), (dying,) = vms.of_job(connection, agent.job), workers.of_job(connection, agent.job)
    assert (vm.exit_code, dying.is_up, dying.generation, dying.finished) == (None, False, 0, None)
    assert (dying.iteration, dying.epochs) == (40, 2.5), "where the job stood is still shown"
    body = {"worker": agent.worker, "address": "127.0.0.1:7"}
    assert agent.say("hello", body).status_code == 200
    with engine.connect() as connection:
        (back,) = workers.of_job(connection, agent.job)
    assert (back.is_up, back.address, back.generation) == (True, "127.0.0.1:7", 0)
    assert back.hello_at > dying.hello_at
    events = EventList.model_validate_json(client.get(f"/v1/jobs/{agent.job}/events").text)
    (told,) = [event.message for event in events.events if event.kind == "restart"]
    assert told == f"{agent.worker} starts its command again: killed by SIGKILL: out of memory"


def test_a_generation_that_was_entered_is_told_once(client: TestClient, agent: Agent) -> None:
    agent.hello()
    for _ in range(2):  # an answer was lost
        report = StepReport(
            agent.worker, Progress(1, 0, 0, 0.0, {}), regrouped=Regrouped(1, 0.25, 3)
        )
        assert agent.say("report", REPORT.dump_json(report)).status_code == 200
    events = EventList.model_validate_json(client.get(f"/v1/jobs/{agent.job}/events").text)
    told = [event.message for event in events.events if event.kind == "regrouped"]
    assert told == ["generation 1 entered in 0.250 s, 3 iterations lost"]


def test_news_of_a_death_that_comes_after_the_new_process_is_old(
    agent: Agent, engine: Engine
) -> None:
    agent.hello()
    with engine.begin() as connection:
        (known,) = workers.of_job(connection, agent.job)
        workers.record_restart(connection, agent.worker, known.hello_at - timedelta(seconds=1))
        assert workers.of_job(connection, agent.job) == (known,)


def test_the_same_process_that_says_hello_twice_keeps_its_place(
    agent: Agent, engine: Engine
) -> None:
    agent.hello()
    report = StepReport(agent.worker, Progress(3, 40, 1280, 2.5, {}))
    assert agent.say("report", REPORT.dump_json(report)).status_code == 200
    agent.hello()
    with engine.connect() as connection:
        (known,) = workers.of_job(connection, agent.job)
    assert (known.generation, known.is_up) == (3, True)


def test_the_cause_of_an_end_is_an_event_and_stands_under_the_last_lines(
    client: TestClient, agent: Agent, engine: Engine
) -> None:
    agent.hello()
    end(agent, cause="no progress for 300 s")
    with engine.connect() as connection:
        (vm,) = vms.of_job(connection, agent.job)
    assert (vm.exit_code, vm.tail) == (-9, "step 8\nno progress for 300 s")
    events = EventList.model_validate_json(client.get(f"/v1/jobs/{agent.job}/events").text)
    assert events.events[-1].message == (
        f"{agent.worker} ended: killed by SIGKILL: no progress for 300 s"
    )


def test_an_end_that_is_told_again_is_no_news(
    client: TestClient, agent: Agent, engine: Engine
) -> None:
    agent.hello()
    end(agent, cause="no progress for 300 s")
    end(agent, cause="no progress for 600 s")
    with engine.connect() as connection:
        (vm,) = vms.of_job(connection, agent.job)
    assert vm.tail == "step 8\nno progress for 300 s"
    events = EventList.model_validate_json(client.get(f"/v1/jobs/{agent.job}/events").text)
    assert [event.kind for event in events.events].count("exit") == 1
