"""Compiled code on its way from one machine to another of its project, and to no other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, update
from torch import nn

from scavenger.worker_env import WorkerEnv
from service.db import bundles, vms
from service.db.schema import jobs as jobs_table
from tests.builders import NOW
from tests.contract.host import JOB, KEYS, WORKER, Host, host
from worker_agent.controller import ControllerClient
from worker_agent.errors import ControllerRefused
from worker_agent.pytorch.stacks.code_cache import CACHE_VARIABLE, CodeCache
from worker_agent.state.bundles import ControllerBundles, open_bundles

KEY = "ab" * 32
PLATFORM = "from worker_agent.pytorch.stacks.code_cache import platform_key as key; print(key())"


@pytest.fixture
def controller(engine: Engine) -> Iterator[Host]:
    with host(engine) as controller:
        yield controller


Machine = Callable[..., ControllerBundles]


@pytest.fixture
def machine(controller: Host, tmp_path: Path) -> Iterator[Machine]:
    """Return a function that opens the bundles of a machine by its name."""
    opened: list[ControllerBundles] = []

    def open_machine(name: str = "one", secret: str = "of the project") -> ControllerBundles:
        settings = WorkerEnv(
            controller=controller.url,
            token=KEYS.issue_worker_token(WORKER, 0),
            job=JOB,
            worker=WORKER,
            prepaid=60.0,
            spool=str(tmp_path / name / "spool"),
            bundle_secret=secret,
        )
        found = open_bundles(settings, ControllerClient(settings))
        assert found is not None
        opened.append(found)
        return found

    yield open_machine
    for each in opened:
        each.controller._http.close()


def test_an_archive_is_kept_for_the_machines_of_its_project(
    machine: Machine, engine: Engine
) -> None:
    place = machine()
    assert place.fetch(KEY) is None
    place.store(KEY, b"one")
    place.store(KEY, b"two")
    assert place.fetch(KEY) == b"two"
    with engine.begin() as connection:
        connection.execute(update(jobs_table).where(jobs_table.c.id == JOB).values(project="other"))
    assert place.fetch(KEY) is None


def test_a_machine_that_is_gone_opens_nothing(machine: Machine, engine: Engine) -> None:
    place = machine()
    place.store(KEY, b"one")
    with engine.begin() as connection:
        vms.record_gone(connection, WORKER, NOW)
    for ask in (lambda: place.fetch(KEY), lambda: place.store(KEY, b"two")):
        with pytest.raises(ConnectionError, match="no machine of a running job"):
            ask()


@pytest.mark.parametrize(
    ("key", "size", "status"), [("../x", 1, 403), ("AB" * 32, 1, 422), (KEY, 65 << 20, 413)]
)
def test_what_is_no_key_or_too_large_is_refused(
    machine: Machine, key: str, size: int, status: int
) -> None:
    with pytest.raises(ConnectionError) as refused:
        machine().store(key, bytes(size))
    cause = refused.value.__cause__
    assert isinstance(cause, ControllerRefused)
    assert cause.status == status


def test_beyond_its_room_a_project_keeps_what_was_used_last(engine: Engine) -> None:
    with engine.begin() as connection:
        for number in range(4):
            at = NOW + timedelta(seconds=number)
            bundles.store(connection, "mine", str(number), b"0" * 100, at)
            bundles.store(connection, "other", str(number), b"0" * 100, at)
        assert bundles.fetch(connection, "mine", "0", NOW + timedelta(minutes=1)) is not None
        bundles.drop_oldest(connection, "mine", 250)
        left = {
            key: bundles.fetch(connection, "mine", key, NOW) is not None
            for key in map(str, range(4))
        }
        assert left == {"0": True, "1": False, "2": False, "3": True}
        assert bundles.fetch(connection, "other", "1", NOW) is not None


def test_each_project_signs_with_a_secret_of_its_own() -> None:
    assert KEYS.bundle_secret("one") != KEYS.bundle_secret("two")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache folder of another test."""
    monkeypatch.setenv(CACHE_VARIABLE, "")
    monkeypatch.delenv(CACHE_VARIABLE)


@pytest.mark.usefixtures("fresh")
def test_a_newcomer_has_what_another_machine_compiled(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(2, 3)
    first = CodeCache(model, machine("first"))
    assert first.open() == ""
    compiled = Path(os.environ[CACHE_VARIABLE])
    (compiled / "fx").mkdir()
    (compiled / "fx" / "graph").write_bytes(b"code")
    assert first.share() == ""
    monkeypatch.delenv(CACHE_VARIABLE)
    newcomer = CodeCache(nn.Linear(2, 3), machine("second"))
    assert newcomer.open() == ""
    folder = Path(os.environ[CACHE_VARIABLE])
    assert folder.is_relative_to(tmp_path / "second")
    assert (folder / "fx" / "graph").read_bytes() == b"code"
    assert newcomer.share() == ""  # has nothing new
    monkeypatch.delenv(CACHE_VARIABLE)
    another = CodeCache(nn.Linear(2, 4), machine("third"))
    another.open()
    assert not list(Path(os.environ[CACHE_VARIABLE]).iterdir())


@pytest.mark.usefixtures("fresh")
def test_code_that_another_project_signed_is_not_used_and_the_reason_is_told(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(2, 3)
    first = CodeCache(model, machine("first", "of another"))
    first.open()
    Path(os.environ[CACHE_VARIABLE], "graph").write_bytes(b"code")
    first.share()
    monkeypatch.delenv(CACHE_VARIABLE)
    newcomer = CodeCache(model, machine("second"))
    assert "its signature is not that of this project" in newcomer.open()
    assert not list(Path(os.environ[CACHE_VARIABLE]).iterdir())


@pytest.mark.usefixtures("fresh")
def test_without_a_controller_code_is_compiled_cold(machine: Machine) -> None:
    place = machine()
    place.controller._http.base_url = httpx.URL("http://127.0.0.1:9")
    cache = CodeCache(nn.Linear(2, 3), place)
    assert "compiled code of other workers is not used" in cache.open()
    Path(os.environ[CACHE_VARIABLE], "graph").write_bytes(b"code")
    assert "the code that was compiled is not shared" in cache.share()


@pytest.mark.slow
def test_code_of_another_instruction_set_or_of_other_threads_has_another_key() -> None:
    plain = {**os.environ, "OMP_NUM_THREADS": "1"}
    told = (plain, {**plain, "ATEN_CPU_CAPABILITY": "avx2"}, {**plain, "OMP_NUM_THREADS": "2"})
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PLATFORM], env=env, stdout=subprocess.PIPE, text=True
        )
        for env in told
    ]
    keys = [process.communicate()[0].strip() for process in started]
    assert [process.returncode for process in started] == [0] * 3
    assert len(set(keys)) == 3
    assert all(len(key) == 64 for key in keys)
