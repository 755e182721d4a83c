"""Keys open what they should, and an unfinished file opens nothing."""

from __future__ import annotations

import time
from pathlib import Path

from service.auth.permissions import BootstrapPrincipal, WorkerPrincipal
from service.auth.tokens import ControllerKeys


def test_keys_are_made_once_and_for_their_owner_only(tmp_path: Path) -> None:
    keys = ControllerKeys.at(tmp_path)
    assert ControllerKeys.at(tmp_path) == keys
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("token", "secret")} == {0o600}


def test_an_empty_file_is_no_key(tmp_path: Path) -> None:
    for name in ("token", "secret"):
        (tmp_path / name).write_text("")
    keys = ControllerKeys.at(tmp_path)
    assert keys.home_token
    assert keys.secret
    assert keys.read_worker_token("") is None


def test_tokens_say_who_holds_them(tmp_path: Path) -> None:
    keys = ControllerKeys.at(tmp_path)
    assert keys.read_worker_token(keys.home_token) is None
    assert keys.read_worker_token(
        keys.issue_worker_token("job_1-w1", 3, now := int(time.time()))
    ) == WorkerPrincipal("job_1-w1", "job_1", 3, now)
    assert keys.read_bootstrap_token(keys.bootstrap_token("job_1-w1")) == BootstrapPrincipal(
        "job_1-w1"
    )
    assert (
        keys.read_bootstrap_token(keys.issue_worker_token("job_1-w1"))
        is keys.read_worker_token(keys.bootstrap_token("w1"))
        is None
    )
    assert (
        keys.read_worker_token(
            ControllerKeys("t", "another secret that is long enough!").issue_worker_token("w1")
        )
        is None
    )
    assert keys.read_worker_token("\udcff") is None


def test_a_job_shares_a_secret_that_no_other_job_knows(tmp_path: Path) -> None:
    keys = ControllerKeys.at(tmp_path)
    ours = keys.job_secret("job_1")
    assert ours == keys.job_secret("job_1")
    assert ours != keys.job_secret("job_2")
    assert keys.read_worker_token(ours) is None


def test_the_secret_of_ownership_opens_nothing_and_is_of_one_controller(tmp_path: Path) -> None:
    keys = ControllerKeys.at(tmp_path)
    assert keys.label_secret() == ControllerKeys.at(tmp_path).label_secret()
    assert (
        keys.label_secret()
        != ControllerKeys(keys.home_token, "another secret that is long enough!").label_secret()
    )
    assert keys.read_worker_token(keys.label_secret().hex()) is None
    assert keys.label_secret().hex() != keys.job_secret("label_secret")
