"""Controllers of one database have their machines in one place; one with another does not start."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine

from service.__main__ import check_clouds
from service.auth.tokens import ControllerKeys
from service.clouds.clouds import Clouds
from service.clouds.local import LocalProvider
from service.db import controllers, jobs
from service.errors import AccountRefused, CloudsFileRefused
from tests.builders import HERE, NOW, spec

Start = Callable[..., subprocess.CompletedProcess[str]]


def settle(engine: Engine, account: str) -> bool:
    try:
        with engine.begin() as connection:
            controllers.check_account(connection, "local", account)
    except AccountRefused:
        return False
    return True


def test_of_two_accounts_that_come_at_once_one_is_taken_from_then_on(engine: Engine) -> None:
    with ThreadPoolExecutor(8) as pool:
        settled = list(pool.map(lambda n: settle(engine, f"account {n % 2}"), range(16)))
    ours = 0 if settled[0] else 1
    assert settled == [n % 2 == ours for n in range(16)]
    with engine.begin() as connection:
        controllers.forget_accounts(connection)
    assert settle(engine, "a third")
    assert not settle(engine, f"account {ours}")


def test_a_directory_of_machines_is_known_wherever_it_is_reached(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        root = tmp_path / "machines"
        made = pool.map(lambda _: LocalProvider(root, sys.executable).account, range(16))
    (account,) = set(made)
    root.rename(tmp_path / "moved")
    assert LocalProvider(tmp_path / "moved", sys.executable).account == account
    assert LocalProvider(root, sys.executable).account != account


@pytest.fixture
def start(engine: Engine, tmp_path: Path) -> Start:
    """Start a controller, which is expected not to run for long."""
    (tmp_path / "first").mkdir()
    keys = ControllerKeys.at(tmp_path / "first")
    with engine.begin() as connection:
        controllers.check_secret(connection, keys.fingerprint)
        account = LocalProvider(tmp_path / "first" / "machines", sys.executable).account
        controllers.check_account(connection, "local", account)

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        scavenger = Path(sys.executable).parent / "scavenger"
        secret = ("--secret-file", tmp_path / "first" / "secret")
        command = [scavenger, "serve", "--home", tmp_path / "second", *secret, *words]
        url = engine.url.render_as_string(hide_password=False)
        return subprocess.run(
            list(map(str, command)),
            env={"SCAVENGER_DATABASE_URL": url, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_second_home_says_what_to_do_and_does_not_start(start: Start) -> None:
    ended = start("--port", 0)
    assert ended.returncode == 1
    assert "name with --machines the directory" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_second_home_whose_machines_are_those_of_the_first_gets_further(
    start: Start, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = start("--port", port, "--machines", tmp_path / "first" / "machines")
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose" in ended.stderr


def test_a_clouds_file_without_the_entry_of_unfinished_jobs_stops_the_start(engine: Engine) -> None:
    rented = Clouds([LocalProvider(Path("/nowhere"), sys.executable, name="rented")])
    check_clouds(engine, rented)
    with engine.begin() as connection:
        jobs.create(connection, "job_1", spec(), NOW)
    with pytest.raises(CloudsFileRefused, match="jobs of local have not ended"):
        check_clouds(engine, rented)
    check_clouds(engine, HERE)
