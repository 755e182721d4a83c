"""Canaries: unique secrets in every place that holds one, looked for in every place that shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe

import psutil
import pytest
from sqlalchemy import Engine, String, cast, create_engine, select
from sqlalchemy.pool import NullPool

from scavenger.view import Phase
from service.db.schema import metadata
from service.postgres import EmbeddedPostgres
from tests.builders import document
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


class Leak(AssertionError):
    """A secret was found where somebody may read it."""


def look(where: str, text: str, secrets: Mapping[str, str]) -> None:
    for name, secret in secrets.items():
        if secret in text:
            raise Leak(f"{name} in {where}: …{text[max(0, text.index(secret) - 80) :][:200]}…")


def look_at_processes(secrets: Mapping[str, str]) -> None:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            look(f"arguments of process {process.pid}", " ".join(process.cmdline()), secrets)


def look_at_answers(controller: Controller, job: str, secrets: Mapping[str, str]) -> int:
    """Look at what every address that only shows something says; how many there are."""
    paths = controller.ask("GET", "/openapi.json").json()["paths"]
    shown = [path.replace("{job}", job) for path, methods in paths.items() if "get" in methods]
    for path in [*shown, "/nowhere", "/docs"]:
        answer = controller.ask("GET", path)
        look(f"the answer of {path}", f"{answer.headers} {answer.text}", secrets)
    refused = controller.ask("POST", "/v1/jobs", json=document(price=secrets["planted"]))
    assert refused.status_code == 422
    look("a refusal", refused.text, {**secrets, "planted": "no, it repeats what is wrong"})
    return len(shown)


def look_at_tables(engine: Engine, secrets: Mapping[str, str]) -> int:
    """Look at every column of every table; how many values there are."""
    looked = 0
    with engine.connect() as connection:
        for table in metadata.sorted_tables:
            for column in table.columns:
                for value in connection.execute(select(cast(column, String))).scalars():
                    look(f"{table.name}.{column.name}", value or "", secrets)
                    looked += 1
    return looked


def look_at_files(home: Path, secrets: Mapping[str, str]) -> int:
    """Look at every file others may read; how many hold a secret that they may not."""
    hidden = 0
    for file in (file for file in home.rglob("*") if file.is_file()):
        content = file.read_bytes().decode(errors="replace")
        if file.stat().st_mode & 0o077:
            look(str(file), content, secrets)
        hidden += any(secret in content for secret in secrets.values())
    return hidden


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
    secrets["planted"] = token_urlsafe(16)
    assert environment["MODE"] == PLAIN
    assert "PYTHONPATH" not in environment
    assert (tmp_path / "in force").exists()
    look_at_processes(secrets)
    go.touch()
    view = controller.finished(job)
    assert view.phase is Phase.FAILED
    assert view.reason.count("[redacted]") >= 4
    look_at_processes(secrets)
    assert look_at_answers(controller, job, secrets) >= 8
    port = (controller.home / "postgres/data/postmaster.pid").read_text().splitlines()[3]
    url = f"postgresql+psycopg://scavenger:{secrets['password']}@127.0.0.1:{port}/postgres"
    assert look_at_tables(create_engine(url, poolclass=NullPool), secrets) > 50
    log = (controller.home.parent / "controller.log").read_text()
    look("the log", log, secrets)
    assert job in log
    assert look_at_files(controller.home, secrets) >= 3


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
    given = engine.url.set(drivername="postgresql", username=role, password=password)
    spelled = {"password": password, "in a URL": given.render_as_string(hide_password=False)}
    secrets = {**spelled, "planted": token_urlsafe(16)}
    monkeypatch.setenv("SCAVENGER_DATABASE_URL", secrets["in a URL"])
    try:
        with Controller(open_directory / token_urlsafe(4) / "home") as controller:
            look_at_processes(secrets)
            look_at_answers(controller, "job_1", secrets)
            run(postgres, f'ALTER ROLE "{role}" NOLOGIN')
            run(
                postgres,
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'",
            )
            controller.wait(lambda: controller.ask("GET", "/readyz").status_code == 503)
            controller.wait(lambda: "does not answer" in controller.log())
            look("the log", controller.log(), secrets)
            look_at_files(controller.home, secrets)
    finally:
        run(postgres, f'DROP OWNED BY "{role}"')
        run(postgres, f'DROP ROLE "{role}"')


def test_a_password_among_the_arguments_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    url = "postgres://scavenger:canary-word@127.0.0.1:1/none"
    command = [sys.executable, "-m", "service", "--home", home, "--database-url", url]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "SCAVENGER_DATABASE_URL" in ended.stderr
    look("what it said", ended.stderr + ended.stdout, {"password": "canary-word"})
    assert not home.exists()
