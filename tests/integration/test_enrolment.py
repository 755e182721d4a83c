"""A machine that comes up gets a token of its own, once, and keeps it fresh."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from fastapi.testclient import TestClient
from pydantic import TypeAdapter
from sqlalchemy import Engine, insert

from scavenger.layout import PLAIN, Layout
from scavenger.measurement.layout_profile import (
    LAYOUT_PROFILE,
    BlockProfile,
    LayoutProfile,
    LinkSpeed,
)
from scavenger.planning.layouts import GIB
from scavenger.protocol import (
    RENEWAL_HEADER,
    CommandExit,
    EnrolmentReply,
    ExitReply,
    ProfileReply,
    Progress,
    Role,
    StepReport,
    WorkerSpec,
)
from scavenger.stack import EAGER_NAME
from scavenger.worker_env import WorkerEnv
from service.agent_package import AgentPackage
from service.api.dependencies import AppState
from service.app import build_app
from service.auth.permissions import BootstrapOnly, PublicAccess, WorkersOnly
from service.auth.secrets import SecretStore
from service.auth.tokens import WORKER_AUDIENCE, WORKER_TOKEN_LIFETIME, ControllerKeys
from service.clouds.storage import CheckpointStorage
from service.db import directives, jobs, measurements, vms
from service.db.schema import measured_generations
from service.state.loader import load_job_states
from tests.builders import HERE, directive, document, offer
from tests.contract.host import CODE, CODE_SHA256, ROUTES
from tests.controller_double import BOOTSTRAP, TOKEN, ControllerDouble, until
from tests.integration.test_supervisor import Machine
from worker_agent.controller import ControllerClient, TelemetryUploader
from worker_agent.errors import ControllerUnreachable

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)
STRANGER = ControllerKeys(home_token="scv_token", secret="t" * 48)
MINUTE = timedelta(minutes=1)
HOUR = 3600.0
RUN = {
    "command": ["python", "train.py", "it's\n$HOME"],
    "code": CODE_SHA256,
    "directory": "src",
    "setup": ["pip", "install", "."],
    "env": {"LOG_LEVEL": 'a "quoted" word'},
    "secrets": ["HF_TOKEN"],
    "checkpoints": {"every": "20s", "keep": 2},
    "drain": "7s",
    "stall": "9m",
}


class Fleet:
    """One job with a machine, and the API it comes up to."""

    def __init__(self, engine: Engine, client: TestClient, home: Path) -> None:
        self.engine, self.client, self.home = engine, client, home
        room = home / "default"
        room.mkdir()
        (room / "HF_TOKEN").write_text("hf_1\n")
        client.put(f"/v1/code/{CODE_SHA256}", content=CODE)
        self.submit(run=RUN)

    def submit(self, **changes: Any) -> None:
        """Submit a job, and launch its first machine."""
        answer = self.client.post("/v1/jobs", json=document(**changes))
        assert answer.status_code == 201, answer.text
        self.job = answer.json()["id"]
        self.worker = self.launch(1, datetime.now(UTC))

    def launch(self, number: int, attempted_at: datetime | None, role: Role = "worker") -> str:
        worker = f"{self.job}-{role[0]}{number}"
        with self.engine.begin() as connection:
            now, minute = datetime.now(UTC), timedelta(minutes=1)
            place = offer("0.36")
            vms.record_intent(connection, self.job, number, place, now, minute, role=role)
            if attempted_at is not None:
                vms.record_attempt(connection, worker, attempted_at, now + minute, "a-1")
        return worker

    def say(self, what: str, token: str, **body: Any) -> Any:
        content = json.dumps({"worker": self.worker, **body})
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        if what == "code":
            return self.client.get("/v1/agent/code", headers=headers)
        return self.client.post(f"/v1/agent/{what}", content=content, headers=headers)

    def enrol(self, nonce: str = "n", worker: str = "", token: str = "") -> Any:
        worker = worker or self.worker
        return self.say("enrol", token or KEYS.bootstrap_token(worker), worker=worker, nonce=nonce)

    def told(self, kind: str) -> list[str]:
        with self.engine.connect() as connection:
            page = jobs.events_after(connection, self.job, 0, 200)
        return [event.message for event in page if event.kind == kind]


@pytest.fixture
def fleet(engine: Engine, tmp_path: Path) -> Iterator[Fleet]:
    storage = CheckpointStorage(Path("/srv/scavenger"))
    world = AppState(
        engine,
        HERE,
        storage,
        max_startup_seconds=60.0,
        secret_store=SecretStore(tmp_path),
        agent_package=AgentPackage(b"a wheel", "5" * 64),
        ca=b"a certificate",
    )
    headers = {"Authorization": f"Bearer {KEYS.home_token}"}
    with TestClient(build_app(world, KEYS), headers=headers) as client:
        yield Fleet(engine, client, tmp_path)


def test_what_a_machine_is_launched_with_is_always_the_same() -> None:
    assert KEYS.bootstrap_token("job_1-w1") == KEYS.bootstrap_token("job_1-w1")
    others = {KEYS.bootstrap_token("job_1-w2"), STRANGER.bootstrap_token("job_1-w1")}
    assert KEYS.bootstrap_token("job_1-w1") not in others


def test_it_buys_a_token_of_the_machine_and_the_secrets_of_its_job(fleet: Fleet) -> None:
    bought = fleet.enrol().json()
    claims = jwt.decode(
        bought["token"], KEYS.secret, algorithms=["HS256"], audience=WORKER_AUDIENCE
    )
    assert (claims["sub"], claims["job"], claims["generation"]) == (fleet.worker, fleet.job, 0)
    assert claims["exp"] - claims["iat"] == WORKER_TOKEN_LIFETIME
    assert bought["job_secret"] == KEYS.job_secret(fleet.job)
    assert bought["secrets"] == {"HF_TOKEN": "hf_1"}
    hello = fleet.say("hello", bought["token"], address="127.0.0.1:1")
    assert hello.status_code == 200


def test_enrolment_brings_what_the_machine_runs(fleet: Fleet) -> None:
    server = fleet.launch(2, datetime.now(UTC), "server")
    told = {
        worker: TypeAdapter(EnrolmentReply).validate_json(fleet.enrol(worker=worker).content)
        for worker in (fleet.worker, server)
    }
    trainer = told[fleet.worker].worker
    assert trainer == WorkerSpec(
        command=("python", "train.py", "it's\n$HOME"),
        directory="src",
        code=CODE_SHA256,
        setup=("pip", "install", "."),
        variables={"LOG_LEVEL": 'a "quoted" word'},
        checkpoints=f"/srv/scavenger/checkpoints/{fleet.job}",
        checkpoint_every=20.0,
        checkpoint_keep=2,
        drain=7.0,
        stall=540.0,
    )
    assert told[server].worker == replace(trainer, role="server", command=(), code=None, setup=())


# Two halves that compute as long as each other, and whose weights are slow to average.
HALVES = LayoutProfile(
    tuple(BlockProfile(f"layers.{n}", 0.0, 0.01, 100.0, 1e6, GIB / 4) for n in range(2)),
    inside=LinkSpeed(1e-5, 1e8),
    across=LinkSpeed(1e-4, 1e8),
    processes_per_machine=2,
)
UNEVEN = replace(HALVES, blocks=(HALVES.blocks[0], replace(HALVES.blocks[1], weight_bytes=0.0)))
PIPELINE = Layout(2, replicas=(1, 1), cuts=("layers.1",), vertical_sync=True)


def enrolled(fleet: Fleet, worker: str = "") -> EnrolmentReply:
    """Return what a machine of the newest job is told as it enrols."""
    content = fleet.enrol(worker=worker or fleet.worker).content
    return TypeAdapter(EnrolmentReply).validate_json(content)


def reply_to(fleet: Fleet, profile: LayoutProfile | None, failure: str = "") -> ProfileReply:
    """Return the answer to what a machine of the newest job has measured."""
    document = None if profile is None else LAYOUT_PROFILE.dump_python(profile, mode="json")
    answer = fleet.say("profile", enrolled(fleet).token, profile=document, failure=failure)
    assert answer.status_code == 200, answer.text
    return TypeAdapter(ProfileReply).validate_json(answer.content)


def submit_pipeline(fleet: Fleet, **limits: Any) -> None:
    strategy = {"pipedream": {"stages": "auto", "vertical_sync": True}}
    fleet.submit(strategy=strategy, limits={"workers": 1, "batch": 32, **limits})


def test_all_machines_train_in_the_pipeline_that_the_profile_of_the_first_one_speaks_for(
    fleet: Fleet,
) -> None:
    submit_pipeline(fleet)
    first = enrolled(fleet).worker
    assert (first.profile, first.layout) == (True, PLAIN)
    said = (
        "the job trains in the asynchronous pipeline 1-1, cut at layers.1, which is expected to be "
        "2 times as fast as one process"
    )
    for profile in (HALVES, UNEVEN):  # the first one stays
        assert reply_to(fleet, profile) == ProfileReply(PIPELINE)
    assert fleet.told("layouts") == [said]
    second = enrolled(fleet, fleet.launch(2, datetime.now(UTC))).worker
    assert (second.profile, second.layout) == (False, PIPELINE)
    submit_pipeline(fleet)
    next_job = enrolled(fleet).worker
    assert (next_job.profile, next_job.layout) == (False, PIPELINE)
    earlier = "the model was profiled for an earlier job: "
    assert fleet.told("layouts") == [f"{earlier}{said}"]


@pytest.mark.parametrize(
    ("profile", "limits", "why"),
    [
        (replace(HALVES, concurrent_processes=1), {}, "computes with one process at a time, so no"),
        (replace(HALVES, inside=LinkSpeed(0.0, 1e12)), {}, "on up to 2 processes is faster than p"),
        (HALVES, {"process_gib": 0.5}, "1-1 needs least, 0.81 GiB in a process, which has 0.5 Gi"),
        (None, {}, "nothing tells which stages are fastest, since it takes one step: write the pr"),
    ],
)
def test_a_job_without_a_pipeline_that_pays_hears_why_and_what_to_write(
    fleet: Fleet, profile: LayoutProfile | None, limits: dict[str, Any], why: str
) -> None:
    submit_pipeline(fleet, **limits)
    reply = reply_to(fleet, profile, "" if profile else "it takes one step")
    assert why in reply.refusal
    assert "stages" in reply.refusal.partition(": write ")[2]
    assert fleet.told("layouts") == [reply.refusal]


def after_failure(fleet: Fleet, layout: Layout, said: str = "no") -> Layout | None:
    """Return the layout in which a machine is to go on after its command failed in one."""
    message = CommandExit(fleet.worker, 1, f"Traceback\n{said}\n", failed_layout=layout)
    body = TypeAdapter(CommandExit).dump_python(message, mode="json")
    answer = fleet.say("exit", KEYS.issue_worker_token(fleet.worker), **body)
    assert answer.status_code == 200, answer.text
    return TypeAdapter(ExitReply).validate_json(answer.content).layout


def test_a_layout_in_which_a_command_fails_before_it_trains_is_left_out(fleet: Fleet) -> None:
    limits = {"workers": "1..2", "batch": [32, 64], "layout": {"pipeline": [1, 2]}}
    fleet.submit(limits=limits)
    cut = reply_to(fleet, HALVES).layout
    assert cut.pipeline == 2
    for _ in range(2):  # the answer may get lost
        assert after_failure(fleet, cut) == PLAIN
    assert fleet.told("stack_refused") == [
        f"the job does without {cut}, in which {fleet.worker} could not train: no"
    ]
    assert fleet.told("exit") == []
    assert fleet.told("restart")[0].endswith(f"exit code 1, now with {PLAIN}")
    shown = fleet.client.get(f"/v1/jobs/{fleet.job}/curve").json()
    assert [each["name"] for each in shown["stacks"] if each["refusal"] == "no"] == [str(cut)]
    # It is the last one, so the command has failed.
    assert after_failure(fleet, PLAIN) is None
    assert len(fleet.told("stack_refused")) == 1


def stacks_planned(fleet: Fleet) -> list[str]:
    """Return the stacks that the newest job may use, as far as its first tick knows."""
    with fleet.engine.connect() as connection:
        job = jobs.find(connection, fleet.job)
        assert job is not None
        kind = HERE.default.traits.machine_type
        (state,) = load_job_states(connection, kind, [job], datetime.now(UTC))
    return [option.name for option in state.knowledge.space.stacks]


def train_in(fleet: Fleet, layout: Layout) -> None:
    """Let the newest job have trained an iteration in a layout."""
    told = directive(1, 32, layout=str(layout))
    with fleet.engine.begin() as connection:
        directives.publish(connection, fleet.job, told, datetime.now(UTC))
        row = {"job": fleet.job, "generation": 1, "first_iteration": 1}
        connection.execute(insert(measured_generations).values(row))


@pytest.mark.parametrize(
    ("run", "later", "trains", "is_known"),
    [
        (RUN, RUN, True, True),
        (RUN, {**RUN, "env": {}}, True, False),  # it may fail no more
        ({"command": ["python"]}, {"command": ["python"]}, True, False),  # nor may other code
        (RUN, RUN, False, False),  # no layout was to blame
    ],
    ids=["the same", "another environment", "code of the machine", "it never trains"],
)
def test_a_run_that_failed_in_a_layout_does_not_try_it_again_in_the_next_jobs(
    fleet: Fleet, run: dict[str, Any], later: dict[str, Any], trains: bool, is_known: bool
) -> None:
    limits = {"workers": 1, "batch": 32, "layout": {"pipeline": [1, 2]}}
    fleet.submit(limits=limits, run=run)
    cut = reply_to(fleet, HALVES).layout
    assert after_failure(fleet, cut) == PLAIN
    for _ in range(2):
        if trains:
            train_in(fleet, PLAIN)
        fleet.submit(limits=limits, run=later)
        assert (str(cut) in stacks_planned(fleet)) != is_known
        assert enrolled(fleet).worker.layout == (PLAIN if is_known else cut)
        said = f"the job does without {cut}, as an earlier job that ran the same did: no"
        assert fleet.told("stack_refused") == [said] * is_known
        (layouts,) = fleet.told("layouts")
        assert layouts.endswith("with P=1 T=1, without those that it left out") == is_known
    fleet.submit(limits={**limits, "layout": {"pipeline": 2}}, run=later)
    assert enrolled(fleet).worker.layout == Layout(2)  # who names it gets it


def test_a_job_whose_script_fails_in_one_process_goes_on_in_several(fleet: Fleet) -> None:
    fleet.submit(limits={"workers": 1, "batch": [32], "layout": {"pipeline": [1, 2]}})
    cut = reply_to(fleet, HALVES).layout
    assert enrolled(fleet, fleet.launch(2, datetime.now(UTC))).worker.searches_layout
    assert after_failure(fleet, PLAIN) == cut
    assert after_failure(fleet, cut) is None
    with fleet.engine.connect() as connection:
        refused = measurements.stack_checks_of_jobs(connection, [fleet.job])[fleet.job]
    assert [check.stack for check in refused] == [EAGER_NAME]


def test_a_command_that_fails_in_a_layout_others_have_trained_in_has_failed(fleet: Fleet) -> None:
    fleet.submit(limits={"workers": 1, "batch": 32, "layout": {"pipeline": [1, 2]}})
    reply_to(fleet, HALVES)
    cut = Layout(2, micro_batches=2, cuts=("layers.1",))
    train_in(fleet, cut)
    assert after_failure(fleet, cut) is None
    assert fleet.told("stack_refused") == []


def test_a_job_that_searches_no_layout_has_no_other(fleet: Fleet) -> None:
    assert after_failure(fleet, Layout(2)) is None


@dataclass(frozen=True)
class FirstReply:
    """What agents of version 1 read of the reply."""

    token: str
    job_secret: str
    secrets: dict[str, str]


def test_an_agent_of_version_1_understands_the_reply(fleet: Fleet) -> None:
    read = TypeAdapter(FirstReply).validate_json(fleet.enrol().content)
    assert read.secrets == {"HF_TOKEN": "hf_1"}


def test_only_a_machine_that_repeats_its_word_gets_the_answer_again(fleet: Fleet) -> None:
    answers = [fleet.enrol("mine") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[0].json()["worker"] == answers[1].json()["worker"] == answers[2].json()["worker"]
    assert fleet.told("enrolment_refused") == []
    stolen = fleet.enrol("of a thief")
    assert stolen.status_code == 403
    assert "token" not in stolen.json()
    assert fleet.told("enrolment_refused") == [
        f"a second machine asked for the token of {fleet.worker}: refused"
    ]
    assert fleet.enrol("mine").status_code == 200


@pytest.mark.parametrize(("minutes", "status"), [(0, 200), (10.9, 200), (11.1, 403), (600, 403)])
def test_it_is_good_for_ten_minutes_and_the_boot_after_the_last_attempt(
    fleet: Fleet, minutes: float, status: int
) -> None:
    late = fleet.launch(2, datetime.now(UTC) - minutes * MINUTE)
    assert fleet.enrol(worker=late).status_code == status
    if status != 200:
        with fleet.engine.begin() as connection:
            now = datetime.now(UTC)
            vms.record_attempt(connection, late, now, now + MINUTE, "a-1")
        assert fleet.enrol(worker=late).status_code == 200, "it was asked for again"


def test_a_machine_that_was_not_requested_or_is_gone_is_not_let_in(fleet: Fleet) -> None:
    assert fleet.enrol(worker=fleet.launch(2, None)).status_code == 403
    with fleet.engine.begin() as connection:
        vms.record_gone(connection, fleet.worker, datetime.now(UTC))
    assert fleet.enrol().status_code == 403


def test_a_bootstrap_token_speaks_for_one_machine_that_boots(
    fleet: Fleet,
) -> None:
    other = fleet.launch(2, datetime.now(UTC))
    assert fleet.enrol(worker=other, token=KEYS.bootstrap_token(fleet.worker)).status_code == 403
    wrong = STRANGER.bootstrap_token(fleet.worker), KEYS.bootstrap_token(fleet.worker)[:-1], "scb_"
    assert [fleet.enrol(token=token).status_code for token in wrong] == [401, 401, 401]
    headers = {"Authorization": f"Bearer {KEYS.bootstrap_token(fleet.worker)}"}
    for (method, path), access in ROUTES.items():
        asked = path.replace("{page:dashboard_path}", "jobs")
        status = fleet.client.request(method, asked, headers=headers).status_code
        assert (status != 403) == (access in (BootstrapOnly(), PublicAccess())), path


def test_a_machine_that_boots_gets_the_agent_and_the_certificate_authority(fleet: Fleet) -> None:
    headers = {"Authorization": f"Bearer {KEYS.bootstrap_token(fleet.worker)}"}
    answer = fleet.client.get("/v1/agent/package", headers=headers)
    assert (answer.content, answer.headers["ETag"]) == (b"a wheel", f'"{"5" * 64}"')
    assert fleet.client.get("/v1/agent/ca", headers={"Authorization": ""}).content == (
        b"a certificate"
    )
    with fleet.engine.begin() as connection:
        vms.record_gone(connection, fleet.worker, datetime.now(UTC))
    assert fleet.client.get("/v1/agent/package", headers=headers).status_code == 403


SAID: dict[str, dict[str, Any]] = {
    "/v1/agent/hello": {"address": "127.0.0.1:1"},
    "/v1/agent/report": {
        "progress": {"generation": 0, "iteration": 0, "samples": 0, "epochs": 0.0, "metrics": {}}
    },
    "/v1/agent/profile": {"profile": None, "failure": "it is no model"},
    "/v1/agent/lease": {},
    "/v1/agent/logs": {"printed": 0, "lines": []},
    "/v1/agent/notice": {"reason": "it is taken"},
    "/v1/agent/exit": {"code": 0, "tail": ""},
    "/v1/agent/code": {},
    "/v1/agent/checkpoints/trouble": {"why": "the bucket refuses"},
}
OF_MACHINES = {path for (_, path), allowed in ROUTES.items() if allowed == WorkersOnly()}
# Asked for in tests of their own.
STORED = {
    "/v1/agent/checkpoints/{checkpoint:checkpoint}",
    "/v1/agent/checkpoints/newest",
    "/v1/agent/bundles/{key}",
}


@pytest.mark.parametrize("path", sorted(OF_MACHINES - STORED))
def test_a_machine_that_is_gone_opens_nothing_any_more(fleet: Fleet, path: str) -> None:
    token, what = KEYS.issue_worker_token(fleet.worker), path.removeprefix("/v1/agent/")
    fleet.say("hello", token, address="127.0.0.1:1")
    assert fleet.say(what, token, **SAID[path]).status_code == 200
    with fleet.engine.begin() as connection:
        vms.record_gone(connection, fleet.worker, datetime.now(UTC))
    refused = fleet.say(what, token, **SAID[path])
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def test_a_machine_speaks_for_itself_only(fleet: Fleet) -> None:
    fleet.launch(2, datetime.now(UTC))
    token = KEYS.issue_worker_token(f"{fleet.job}-w2")
    for path in SAID:
        if not path.endswith(
            ("lease", "code", "trouble")
        ):  # which name the machine by its token only
            assert fleet.say(path.rpartition("/")[2], token, **SAID[path]).status_code == 403


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 1},
        {"aud": "stranger"},
        {"exp": None},
        {"job": None},
        {"generation": None},
        {"iat": None},
        {"sub": None},
    ],
    ids=str,
)
def test_a_token_that_lacks_anything_opens_nothing(fleet: Fleet, claims: dict[str, Any]) -> None:
    facts = jwt.decode(
        KEYS.issue_worker_token(fleet.worker),
        KEYS.secret,
        algorithms=["HS256"],
        audience=WORKER_AUDIENCE,
    )
    changed = {name: value for name, value in (facts | claims).items() if value is not None}
    for secret, algorithm in ((KEYS.secret, "HS256"), (KEYS.secret, "HS384"), ("", "none")):
        token = jwt.encode(changed, secret or None, algorithm=algorithm)  # type: ignore[arg-type]
        assert fleet.say("hello", token, address="127.0.0.1:1").status_code == 401


def test_a_token_past_half_its_life_is_renewed_with_the_answer(fleet: Fleet) -> None:
    now = datetime.now(UTC).timestamp()
    young, old = (
        KEYS.issue_worker_token(fleet.worker, 7, now - age * WORKER_TOKEN_LIFETIME)
        for age in (0.4, 0.6)
    )
    assert RENEWAL_HEADER not in fleet.say("hello", young, address="127.0.0.1:1").headers
    fresh = fleet.say("hello", old, address="127.0.0.1:1").headers[RENEWAL_HEADER]
    machine = KEYS.read_worker_token(fresh)
    assert machine is not None
    assert (machine.worker, machine.job, machine.generation) == (fleet.worker, fleet.job, 7)
    assert machine.issued_at == pytest.approx(now, abs=5)
    refused = fleet.say("hello", old, worker="stranger")
    assert refused.status_code >= 400
    assert RENEWAL_HEADER not in refused.headers
    dead = KEYS.issue_worker_token(fleet.worker, 7, now - 1.1 * WORKER_TOKEN_LIFETIME)
    assert fleet.say("hello", dead, address="127.0.0.1:1").status_code == 401


def test_a_secret_that_is_not_there_is_refused_before_anything_is_stored(fleet: Fleet) -> None:
    run = {"command": ["python"], "secrets": ["HF_TOKEN", "WANDB_API_KEY"]}
    answer = fleet.client.post("/v1/jobs", json=document(run=run))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/run/secrets"
    assert "no WANDB_API_KEY: put each into a file secrets/default/NAME" in answer.text
    assert len(fleet.client.get("/v1/jobs").json()["jobs"]) == 1


def test_a_secret_that_is_gone_is_told(fleet: Fleet) -> None:
    (fleet.home / "default" / "HF_TOKEN").unlink()
    assert fleet.enrol().json()["secrets"] == {}
    assert fleet.told("secret_missing") == [
        "the secret HF_TOKEN of the project default no longer exists"
    ]


def test_a_vault_opens_what_lies_in_it_and_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("no")
    secret_store = SecretStore(tmp_path / "secret_store")
    assert secret_store.missing_names("a", ["X"]) == ["X"]
    for project in ("a", "b"):
        (tmp_path / "secret_store" / project).mkdir(parents=True)
        (tmp_path / "secret_store" / project / "X").write_text(f"of {project}\n")
    assert secret_store.read("a", ["X"]) == {"X": "of a"}
    names = ["../b/X", "../../outside", "/etc/passwd", ".", "..", ""]
    assert secret_store.read("a", names) == {}
    assert secret_store.read("..", ["outside"]) == secret_store.read("*", ["X"]) == {}


# The machine's side.


@pytest.fixture
def controller() -> Iterator[ControllerDouble]:
    double = ControllerDouble()
    yield double
    double.close()


SHOW = """
names = "SCAVENGER_TOKEN", "SCAVENGER_JOB_SECRET", "HF_TOKEN", "SCAVENGER_STRATEGY", "COLOUR"
print(*(f"{name}={os.environ.get(name)}" for name in names), flush=True)
"""


def test_the_command_gets_what_the_machine_bought_even_when_an_answer_was_lost(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    controller.lost = 2
    controller.assign(strategy="downpour", variables={"COLOUR": "blue"})
    machine = Machine(tmp_path, controller)
    machine.start(SHOW)
    assert machine.ending().code == 0
    assert (
        f"SCAVENGER_TOKEN={TOKEN} SCAVENGER_JOB_SECRET=of all of us HF_TOKEN=hf_1 "
        "SCAVENGER_STRATEGY=downpour COLOUR=blue" in machine.said()
    )
    first, *others = controller.enrolments
    assert others == [first, first]
    assert len(first.nonce) == 32
    assert BOOTSTRAP not in machine.said()


DIE_ONCE = """
import time
if os.environ["SCAVENGER_TOKEN"] == {token!r}:
    while not os.path.exists({go!r}):
        time.sleep(0.02)
    os.kill(os.getpid(), 9)
"""


def test_a_command_that_starts_again_gets_the_newest_token(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    machine = Machine(tmp_path, controller)
    machine.start(f"{SHOW}{DIE_ONCE.format(go=str(go), token=TOKEN)}")
    # Any answer may bring the next token, so none does before the command has its first.
    until(lambda: f"SCAVENGER_TOKEN={TOKEN}" in machine.said())
    controller.renewed = "the-next-token"
    go.touch()
    assert machine.ending().code == 0
    assert len(controller.restarts) == 1
    assert f"SCAVENGER_TOKEN={TOKEN}" in machine.said()
    assert "SCAVENGER_TOKEN=the-next-token" in machine.said()
    assert controller.shown[-1] == ("/v1/agent/exit", "the-next-token")


def test_a_machine_that_is_not_let_in_ends(controller: ControllerDouble, tmp_path: Path) -> None:
    machine = Machine(tmp_path, controller)
    machine.start(SHOW, SCAVENGER_TOKEN="scb_w1_wrong")
    until(machine.ended)
    assert "enrolment was refused, so this machine ends" in machine.said()
    assert "SCAVENGER_JOB_SECRET" not in machine.said()
    assert controller.exits == []


def test_a_machine_that_is_not_let_in_ends_with_its_prepaid_time(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    controller.lost = sys.maxsize
    machine = Machine(tmp_path, controller)
    machine.start(SHOW, SCAVENGER_PREPAID="1.5")
    until(machine.ended)
    assert "SCAVENGER_JOB_SECRET" not in machine.said()
    assert controller.exits == []


def test_a_controller_that_is_too_busy_did_not_hear_and_is_told_again(
    controller: ControllerDouble,
) -> None:
    me = WorkerEnv(controller=controller.url, token=TOKEN, job="j", worker="w1", prepaid=60)
    client = ControllerClient(me)
    controller.busy = 1
    with pytest.raises(ControllerUnreachable):
        client.lease("w1")
    assert client.lease("w1").remaining == controller.lease


def test_what_a_person_brings_waits_until_the_controller_is_less_busy(
    controller: ControllerDouble,
) -> None:
    controller.busy = 1
    with TelemetryUploader(controller.url, TOKEN) as courier:
        courier.report(StepReport("w1", Progress(1, 0, 0, 0.0, {})))
    assert [path for path, _ in controller.shown] == ["/v1/telemetry/backfill"] * 2
    assert len(controller.reports) == 1
