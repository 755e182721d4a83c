"""Keys open what they should, and an unfinished file opens nothing."""

from __future__ import annotations

import time
from pathlib import Path

from service.caller import Machine, Newcomer
from service.keys import Keys


def test_keys_are_made_once_and_for_their_owner_only(tmp_path: Path) -> None:
    keys = Keys.at(tmp_path)
    assert Keys.at(tmp_path) == keys
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("token", "secret")} == {0o600}


def test_an_empty_file_is_no_key(tmp_path: Path) -> None:
    for name in ("token", "secret"):
        (tmp_path / name).write_text("")
    keys = Keys.at(tmp_path)
    assert keys.token
    assert keys.secret
    assert keys.machine("") is None


def test_tokens_say_who_holds_them(tmp_path: Path) -> None:
    keys = Keys.at(tmp_path)
    assert keys.machine(keys.token) is None
    assert keys.machine(keys.issue("job_1-w1", 3, now := int(time.time()))) == Machine(
        "job_1-w1", "job_1", 3, now
    )
    assert keys.newcomer(keys.bootstrap("job_1-w1")) == Newcomer("job_1-w1")
    assert keys.newcomer(keys.issue("job_1-w1")) is keys.machine(keys.bootstrap("w1")) is None
    assert keys.machine(Keys("t", "another secret that is long enough!").issue("w1")) is None
    assert keys.machine("\udcff") is None


def test_a_job_shares_a_secret_that_no_other_job_knows(tmp_path: Path) -> None:
    keys = Keys.at(tmp_path)
    ours = keys.share("job_1")
    assert ours == keys.share("job_1")
    assert ours != keys.share("job_2")
    assert keys.machine(ours) is None


def test_the_secret_of_ownership_opens_nothing_and_is_of_one_controller(tmp_path: Path) -> None:
    keys = Keys.at(tmp_path)
    assert keys.ownership() == Keys.at(tmp_path).ownership()
    assert keys.ownership() != Keys(keys.token, "another secret that is long enough!").ownership()
    assert keys.machine(keys.ownership().hex()) is None
    assert keys.ownership().hex() != keys.share("ownership")
