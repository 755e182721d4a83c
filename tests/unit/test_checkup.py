"""Checkup: what is fine, what is doubtful, and what must be put right."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from scavenger.cli.doctor import check_home_directory, check_of_error, render_checks
from scavenger.client.diagnostics import (
    CRITICAL_DISK_BYTES,
    LOW_DISK_BYTES,
    OLDEST_POSTGRES,
    check_background_loops,
    check_clocks,
    check_cloud_sweeps,
    check_disk,
    check_durability,
    check_encryption,
    check_permissions,
    check_postgres,
    check_schema,
    check_tensorflow_servers,
    check_versions,
    passed_check,
    warning_check,
)
from scavenger.client.errors import ClientError, NoToken, Unreachable, error_for_problem
from scavenger.schemas.diagnostics import CheckView, DiagnosticsView
from scavenger.schemas.problems import ProblemView
from tests.builders import NOW

DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}


def problem(status: int) -> ProblemView:
    return ProblemView(type="", title="No", status=status, detail="not so", code="")


@pytest.mark.parametrize(
    ("check", "state"),
    [
        (check_versions("1.0", "1.0"), "ok"),
        (check_versions("1.0", "1.1"), "warning"),
        (check_clocks("clock", timedelta(seconds=-0.9)), "ok"),
        (check_clocks("clock", timedelta(seconds=-1.1)), "warning"),
        (check_clocks("clock", timedelta(seconds=10)), "warning"),
        (check_clocks("clock", timedelta(hours=-1)), "failed"),
        (check_disk(LOW_DISK_BYTES), "ok"),
        (check_disk(LOW_DISK_BYTES - 1), "warning"),
        (check_disk(CRITICAL_DISK_BYTES - 1), "failed"),
        (check_permissions({"home": 0o40700, "home/token": 0o100600}), "ok"),
        (check_permissions({"home": 0o40711}), "ok"),
        (check_permissions({"home": 0o40755}), "failed"),
        (check_permissions({"home/token": 0o100640}), "failed"),
        (check_permissions({"home/token": 0o100602}), "failed"),
        (check_encryption("https", is_loopback=False), "ok"),
        (check_encryption("http", is_loopback=True), "ok"),
        (check_encryption("http", is_loopback=False), "failed"),
        (check_postgres(180004), "ok"),
        (check_postgres(OLDEST_POSTGRES * 10000), "ok"),
        (check_postgres(OLDEST_POSTGRES * 10000 - 1), "warning"),
        (check_durability(DURABLE), "ok"),
        (check_durability({**DURABLE, "synchronous_commit": "remote_apply"}), "ok"),
        (check_durability({**DURABLE, "synchronous_commit": "local"}), "failed"),
        (check_durability({**DURABLE, "fsync": "off"}), "failed"),
        (check_durability({"fsync": "on"}), "failed"),
        (check_schema("0005", "0005"), "ok"),
        (check_schema("0006", "0005"), "failed"),
        (check_schema(None, "0005"), "failed"),
        (check_background_loops({"reconciler": True, "sweeper": True}), "ok"),
        (check_background_loops({"reconciler": False, "sweeper": True}), "failed"),
        (check_tensorflow_servers([]), "ok"),
        (check_tensorflow_servers(["digits"]), "warning"),
        (check_cloud_sweeps(None, 0, None), "warning"),
        (check_cloud_sweeps(timedelta(seconds=59), 3, None), "ok"),
        (check_cloud_sweeps(timedelta(seconds=59), 3, "too many"), "failed"),
        (check_cloud_sweeps(timedelta(minutes=4), 3, None), "failed"),
        (check_of_error(NoToken("none is known")), "failed"),
        (check_of_error(Unreachable("http://127.0.0.1:1", "refused")), "failed"),
        (check_of_error(error_for_problem(problem(401))), "failed"),
        (check_of_error(error_for_problem(problem(404))), "warning"),
        (check_of_error(error_for_problem(problem(503))), "failed"),
    ],
)
def test_a_check_says_how_bad_it_is_and_what_to_do(check: CheckView, state: str) -> None:
    assert check.state == state
    assert check.found
    assert bool(check.remedy) == (state != "ok")


def test_what_others_may_read_is_named_and_so_is_the_command_that_closes_it() -> None:
    check = check_permissions({"h": 0o40700, "h/token": 0o100644, "h/secret": 0o100660})
    assert check.remedy == "chmod go-rw h/secret h/token"


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (NoToken("none"), "token"),
        (error_for_problem(problem(401)), "token"),
        (Unreachable("", "no address"), "controller"),
        (error_for_problem(problem(500)), "controller"),
    ],
)
def test_a_failure_is_told_of_what_lacks(error: ClientError, name: str) -> None:
    assert check_of_error(error).name == name


def test_a_home_that_is_not_there_is_no_failure(tmp_path: Path) -> None:
    [check] = check_home_directory(tmp_path / "none")
    assert check.state == "warning"


def test_a_checklist_shows_a_shape_a_finding_and_a_remedy() -> None:
    checks = [
        passed_check("disk", "80 GiB free"),
        warning_check("clock", "2 s apart", "set the clock"),
    ]
    console = Console(file=StringIO(), width=60)
    console.print(render_checks(DiagnosticsView(version="1", at=NOW, checks=checks)))
    assert isinstance(console.file, StringIO)
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert lines == ["✔ disk 80 GiB free", "▲ clock 2 s apart", "→ set the clock"]
