"""Canaries: unique secrets in every place that holds one, looked for in every place that shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_urlsafe

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from scavenger.schemas.jobs import JobPhase
from service.db import partitions
from service.postgres.server import EmbeddedPostgres
from tests.builders import document
from tests.canary import (
    Place,
    everything_shown,
    everything_started,
    everything_stored,
    quiet_webhook,
    readable,
    search,
)
from tests.conftest import run
from tests.controller import Controller

PLAIN = "a-word-that-may-be-shown"
# Fails once it may, and shows all it knows, as a traceback with locals or a debug print would.
SCRIPT = """
import os, pathlib, time
while not pathlib.Path({go!r}).exists():
    time.sleep(0.02)
print(os.environ["SCAVENGER_TOKEN"], os.environ["SCAVENGER_JOB_SECRET"])
raise RuntimeError(dict(os.environ))
"""
# Nothing that was imported by a controller of its own accord may unpickle afterwards, either.
NO_PICKLE = """
import pathlib, pickle, sys
if sys.argv[:1] == ["-m"]:
    def refuse(*arguments, **options):
        raise SystemExit("the controller unpickles")
    pickle.load = pickle.loads = refuse
    pathlib.Path(__file__).with_name("in force").touch()
"""


def refusal(controller: Controller, planted: str) -> Place:
    """What a request is answered in which a secret stands: that one it repeats to its sender."""
    refused = controller.ask("POST", "/v1/jobs", json=document(price=planted))
    assert refused.status_code == 422
    return "a refusal", f"{refused.headers} {refused.text}"


@pytest.fixture
def controller(
    open_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Controller]:
    (tmp_path / "sitecustomize.py").write_text(NO_PICKLE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    with Controller(open_directory / token_urlsafe(4) / "home") as controller:
        yield controller


def test_no_secret_is_shown_anywhere(controller: Controller, tmp_path: Path) -> None:
    files = {"token": "token", "key": "secret", "password": "postgres/password"}
    secrets = {n: (controller.home / file).read_text().strip() for n, file in files.items()}
    go = tmp_path / "go"
    command = [sys.executable, "-c", SCRIPT.format(go=str(go))]
    limits = {"max_cost": "1 USD", "workers": 1, "batch": [32, 128]}
    job = controller.submit(
        document(run={"command": command, "env": {"MODE": PLAIN}}, limits=limits)
    )
    trainer = controller.wait(controller.trainers)[0]
    environment = controller.wait(trainer.environ)
    secrets["worker token"] = environment["SCAVENGER_TOKEN"]
    secrets["job secret"] = environment["SCAVENGER_JOB_SECRET"]
    assert environment["MODE"] == PLAIN
    assert "PYTHONPATH" not in environment
    assert (tmp_path / "in force").exists()
    search(everything_started(), secrets)
    go.touch()
    view = controller.finished(job)
    assert view.phase is JobPhase.FAILED
    assert view.reason.count("[redacted]") >= 4
    search(everything_started(), secrets)
    secrets["webhook"] = str(quiet_webhook(controller).secret)
    search(everything_shown(controller, job), secrets)
    planted = token_urlsafe(16)
    search([refusal(controller, planted)], secrets)
    secrets["planted"] = planted
    port = (controller.home / "postgres/data/postmaster.pid").read_text().splitlines()[3]
    url = f"postgresql+psycopg://scavenger:{secrets['password']}@127.0.0.1:{port}/postgres"
    stored = search(everything_stored(create_engine(url, poolclass=NullPool)), secrets)
    assert job in stored["jobs"]
    assert job in search(readable(controller.home), secrets)["controller.log"]


def test_the_password_of_a_given_database_is_shown_nowhere(
    engine: Engine,
    postgres: EmbeddedPostgres,
    open_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    role, password = (
        f"canary_{token_urlsafe(4).replace('-', '_').lower()}",
        f"p/@:%{token_urlsafe(9)}",
    )
    run(postgres, f"CREATE ROLE \"{role}\" LOGIN SUPERUSER PASSWORD '{password}'")
    with engine.begin() as connection:
        # As at midnight: the controller adds the partition of a day, which belongs to the role.
        last = max(partitions.partitioned_days(connection))
        connection.execute(text(f"DROP TABLE chunks_{last:%Y%m%d}"))
    given = engine.url.set(drivername="postgresql", username=role, password=password)
    spelled = {"password": password, "in a URL": given.render_as_string(hide_password=False)}
    monkeypatch.setenv("SCAVENGER_DATABASE_URL", spelled["in a URL"])
    try:
        with Controller(open_directory / token_urlsafe(4) / "home") as controller:
            search(everything_started(), spelled)
            search(everything_shown(controller), spelled)
            run(postgres, f'ALTER ROLE "{role}" NOLOGIN')
            run(
                postgres,
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'",
            )
            controller.wait(lambda: controller.ask("GET", "/readyz").status_code == 503)
            controller.wait(lambda: "does not answer" in controller.log())
            search(readable(controller.home), spelled)
    finally:
        with engine.begin() as connection:
            connection.execute(text(f'DROP OWNED BY "{role}"'))
        run(postgres, f'DROP ROLE "{role}"')


def test_a_password_among_the_arguments_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    url = "postgres://scavenger:canary-word@127.0.0.1:1/none"
    command = [sys.executable, "-m", "service", "--home", home, "--database-url", url]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "SCAVENGER_DATABASE_URL" in ended.stderr
    search([("what it said", ended.stderr + ended.stdout)], {"password": "canary-word"})
    assert not home.exists()
