"""Secrets planted wherever there is one, looked for wherever people and programs can look."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from service.auth.tokens import ControllerKeys, make_token
from tests.builders import document
from tests.canary import (
    Place,
    everything_shown,
    everything_started,
    everything_stored,
    everything_written,
    search,
)
from tests.controller import Controller

# Where secrets are meant to be, and only their owner reads them.
SAFE = ("token", "secret", "connection.json", "secrets/default/HF_TOKEN")
# What every user may see: a search that does not find it finds nothing else either.
PUBLIC = "a-name-for-all-to-see"
WAITS = "import os, time; assert os.environ['HF_TOKEN']; print('up', flush=True); time.sleep(600)"


@dataclass(frozen=True, slots=True)
class House:
    """A controller with a job whose machine is up, and all the secrets there are."""

    controller: Controller
    engine: Engine
    job: str
    secrets: Mapping[str, str]


@pytest.fixture
def house(engine: Engine, open_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    home = open_directory / "canary" / "home"
    (home / "secrets" / "default").mkdir(parents=True)
    secrets = {"of the job": "hf_canary_0123456789", "of no job": make_token()}
    (home / "secrets" / "default" / "HF_TOKEN").write_text(secrets["of the job"])
    monkeypatch.setenv("SCAVENGER_DATABASE_URL", engine.url.render_as_string(hide_password=False))
    with Controller(home) as controller:
        made = controller.ask("POST", "/v1/tokens", json={"name": "ci", "role": "viewer"}).json()
        run = {"command": [sys.executable, "-c", WAITS], "secrets": ["HF_TOKEN"]}
        job = controller.submit(document(run=run, name=PUBLIC))
        (trainer,) = controller.wait(controller.trainers)
        controller.wait(lambda: "up" in controller.machines())
        keys, told = ControllerKeys.at(home), trainer.environ()
        worker = told["SCAVENGER_WORKER"]
        secrets |= {
            "of the home": keys.home_token,
            "that signs": keys.secret,
            "of a person": made["token"],
            "that starts a machine": keys.bootstrap_token(worker),
            "of a machine": told["SCAVENGER_TOKEN"],
            "of all machines of a job": told["SCAVENGER_JOB_SECRET"],
        }
        assert told["HF_TOKEN"] == secrets["of the job"], "it arrived where it belongs"
        assert keys.read_worker_token(told["SCAVENGER_TOKEN"]) is not None
        assert keys.bootstrap_token(worker) not in told.values(), "the command cannot enrol anew"
        yield House(controller, engine, job, secrets)


def ask_wrongly(house: House) -> Iterator[Place]:
    """Requests that fail with secrets in them, as people make them by mistake."""
    secret, strange = house.secrets["of the job"], house.secrets["of no job"]
    asked: list[dict[str, Any]] = [
        {"json": document(run={"command": ["x"], "env": {"API_KEY": secret}})},
        {"content": f'{{"token": "{secret}", "n": NaN}}', "headers": {"Content-Type": "text/json"}},
        {"json": {}, "headers": {"Authorization": f"Bearer {strange}"}},
        {
            "json": {},
            "headers": {"Authorization": f"Basic {strange}", "X-Request-Id": f"{strange}!"},
        },
    ]
    for number, options in enumerate(asked):
        answer = house.controller.ask("POST", "/v1/jobs", **options)
        assert answer.status_code // 100 == 4
        yield f"refusal {number}", f"{answer.headers} {answer.text}"


def test_no_secret_is_shown_stored_logged_or_an_argument(house: House) -> None:
    home, secrets = house.controller.home, house.secrets
    search(ask_wrongly(house), secrets)
    shown = search(everything_shown(house.controller, house.job), secrets)
    stored = search(everything_stored(house.engine), secrets)
    started = search(everything_started(), secrets)
    safe = {f"home/{name}" for name in SAFE}
    written = search((one for one in everything_written(home) if one[0] not in safe), secrets)
    assert PUBLIC in shown[f"/v1/jobs/{house.job}"]
    assert PUBLIC in stored["jobs"]
    assert any("up" in said for place, said in written.items() if place.endswith(".log"))
    assert any("time.sleep(600)" in said for said in started.values())
    for name in SAFE:
        assert (home / name).stat().st_mode & 0o077 == 0 or name.startswith("secrets"), name
