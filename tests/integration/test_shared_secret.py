"""Controllers of one database share one secret; one with another says so and does not start."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from service.auth.tokens import ControllerKeys
from service.db import controllers
from service.db.schema import installations
from service.errors import SecretRefused


def admit(engine: Engine, fingerprint: str) -> bool:
    try:
        with engine.begin() as connection:
            controllers.check_secret(connection, fingerprint)
    except SecretRefused:
        return False
    return True


def test_of_two_secrets_that_come_at_once_one_is_admitted_from_then_on(engine: Engine) -> None:
    with ThreadPoolExecutor(8) as pool:
        admitted = list(pool.map(lambda n: admit(engine, f"print {n % 2}"), range(16)))
    ours = 0 if admitted[0] else 1
    assert admitted == [n % 2 == ours for n in range(16)]
    assert admit(engine, f"print {ours}")
    assert not admit(engine, f"print {1 - ours}")


def test_a_database_that_forgot_the_secret_takes_the_next(engine: Engine) -> None:
    assert admit(engine, "lost")
    with engine.begin() as connection:
        controllers.installation_id(connection)
        connection.execute(installations.update().values(fingerprint=None))
    assert admit(engine, "new")
    assert not admit(engine, "lost")


def test_homes_that_name_one_file_have_one_secret_and_each_its_own_token(tmp_path: Path) -> None:
    for home in ("first", "second"):
        (tmp_path / home).mkdir()
    first = ControllerKeys.at(tmp_path / "first")
    second = ControllerKeys.at(tmp_path / "second", tmp_path / "first" / "secret")
    assert second.secret == first.secret
    assert second.fingerprint == first.fingerprint
    assert second.home_token != first.home_token
    assert not (tmp_path / "second" / "secret").exists()
    assert ControllerKeys("t", "another secret").fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "No such file"), (b"\xff\xfe", "no text"), (b"short\n", "5 bytes"), (b"", "0 bytes")],
)
def test_a_file_without_a_good_secret_is_refused(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    file = tmp_path / "shared"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SecretRefused, match=why) as refused:
        ControllerKeys.at(tmp_path, file)
    assert str(file) in str(refused.value)
    assert "copy the file `secret`" in str(refused.value)


def test_a_controller_with_another_secret_says_what_to_do_and_does_not_start(
    engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "shared").write_text("of another database, long enough to be used")
    with engine.begin() as connection:
        controllers.check_secret(connection, ControllerKeys.at(tmp_path / "home").fingerprint)
    url = engine.url.render_as_string(hide_password=False)
    given = {"SCAVENGER_SECRET_FILE": str(tmp_path / "shared"), "SCAVENGER_DATABASE_URL": url}
    ended = subprocess.run(
        [sys.executable, "-m", "service", "--home", tmp_path / "home", "--port", "0"],
        capture_output=True,
        text=True,
        env={**os.environ, **given},
    )
    assert ended.returncode == 1
    assert "name the copy with --secret-file" in ended.stderr
    assert "Traceback" not in ended.stderr
    with engine.connect() as connection:
        known = connection.execute(select(installations.c.fingerprint)).scalar_one()
    assert known == ControllerKeys.at(tmp_path / "home").fingerprint
