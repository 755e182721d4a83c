"""Checkup: what is fine, what is doubtful, and what must be put right."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from scavenger.checkup import (
    LITTLE,
    OLDEST_POSTGRES,
    TOO_LITTLE,
    check_clocks,
    check_disk,
    check_durability,
    check_modes,
    check_parts,
    check_postgres,
    check_schema,
    check_sweeps,
    check_versions,
    check_way,
    doubtful,
    good,
)
from scavenger.cli.checklist import show_checks
from scavenger.cli.doctor import checks_of_home, failure
from scavenger.client.errors import ClientError, NoToken, Unreachable, refusal
from scavenger.view import CheckupView, CheckView, ProblemView
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
        (check_disk(LITTLE), "ok"),
        (check_disk(LITTLE - 1), "warning"),
        (check_disk(TOO_LITTLE - 1), "failed"),
        (check_modes({"home": 0o40700, "home/token": 0o100600}), "ok"),
        (check_modes({"home": 0o40711}), "ok"),
        (check_modes({"home": 0o40755}), "failed"),
        (check_modes({"home/token": 0o100640}), "failed"),
        (check_modes({"home/token": 0o100602}), "failed"),
        (check_way("https", is_loopback=False), "ok"),
        (check_way("http", is_loopback=True), "ok"),
        (check_way("http", is_loopback=False), "failed"),
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
        (check_parts({"reconciler": True, "sweeper": True}), "ok"),
        (check_parts({"reconciler": False, "sweeper": True}), "failed"),
        (check_sweeps(None, 0, None), "warning"),
        (check_sweeps(timedelta(seconds=59), 3, None), "ok"),
        (check_sweeps(timedelta(seconds=59), 3, "too many"), "failed"),
        (check_sweeps(timedelta(minutes=4), 3, None), "failed"),
        (failure(NoToken("none is known")), "failed"),
        (failure(Unreachable("http://127.0.0.1:1", "refused")), "failed"),
        (failure(refusal(problem(401))), "failed"),
        (failure(refusal(problem(404))), "warning"),
        (failure(refusal(problem(503))), "failed"),
    ],
)
def test_a_check_says_how_bad_it_is_and_what_to_do(check: CheckView, state: str) -> None:
    assert check.state == state
    assert check.found
    assert bool(check.remedy) == (state != "ok")


def test_what_others_may_read_is_named_and_so_is_the_command_that_closes_it() -> None:
    check = check_modes({"h": 0o40700, "h/token": 0o100644, "h/secret": 0o100660})
    assert check.remedy == "chmod go-rw h/secret h/token"


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (NoToken("none"), "token"),
        (refusal(problem(401)), "token"),
        (Unreachable("", "no address"), "controller"),
        (refusal(problem(500)), "controller"),
    ],
)
def test_a_failure_is_told_of_what_lacks(error: ClientError, name: str) -> None:
    assert failure(error).name == name


def test_a_home_that_is_not_there_is_no_failure(tmp_path: Path) -> None:
    [check] = checks_of_home(tmp_path / "none")
    assert check.state == "warning"


def test_a_checklist_shows_a_shape_a_finding_and_a_remedy() -> None:
    checks = [good("disk", "80 GiB free"), doubtful("clock", "2 s apart", "set the clock")]
    console = Console(file=StringIO(), width=60)
    console.print(show_checks(CheckupView(version="1", at=NOW, checks=checks)))
    assert isinstance(console.file, StringIO)
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert lines == ["✔ disk 80 GiB free", "▲ clock 2 s apart", "→ set the clock"]
