"""Commands against a real controller: what they ask, what they show, and what they advise."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from sqlalchemy import Engine
from typer.testing import CliRunner

from scavenger.cli.main import MainCommands, app
from scavenger.cli.output import Terminal
from scavenger.client.client import Client
from scavenger.client.errors import error_for_problem
from scavenger.drawing import draw_curve
from scavenger.errors import ExitCode, InvalidDocument
from scavenger.schemas.jobs import JobList, JobPhase, JobView
from scavenger.schemas.plans import PlanView
from scavenger.schemas.problems import ProblemView
from service.api.problems import PROBLEM_TYPES
from service.db import jobs
from tests.builders import NOW, spec
from tests.contract.host import ENTRIES, JOB, KEYS, ROUTES, Host, filled, host

ENDED = "job_3"


@dataclass
class Wire(httpx.HTTPTransport):
    """A connection that remembers what was asked over it."""

    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.raw_path.decode())
        return super().handle_request(request)


@dataclass(frozen=True)
class Said:
    """What came of a command."""

    code: int
    data: str
    stderr: str
    asked: list[str]


@dataclass(frozen=True)
class Desk:
    """Where commands are typed."""

    controller: Host

    def run(self, *words: str, token: str = KEYS.home_token) -> Said:
        wire, data, stderr = Wire(), console(), console()
        with Client(self.controller.url, token, transport=wire) as client:
            terminal = Terminal(data, stderr, lambda: client)
            result = CliRunner().invoke(app, [*words], obj=terminal)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        file = data.file, stderr.file
        said = [f.getvalue() for f in file if isinstance(f, StringIO)]
        return Said(result.exit_code, said[0] + result.stdout, said[1] + result.stderr, wire.asked)


def console() -> Console:
    return Console(file=StringIO(), width=200, markup=False, emoji=False, highlight=False)


@pytest.fixture
def desk(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("COLUMNS", "200")  # errors go to a console of the process's own
    with host(engine) as controller:
        with engine.begin() as connection:
            jobs.create(connection, "job_named", spec(name="other"), NOW)
            for phase in (JobPhase.STARTING, JobPhase.CANCELLED):
                jobs.change_outcome(connection, ENDED, phase=phase, finished_at=NOW)
        yield Desk(controller)


def test_a_remedy_is_of_the_command_that_was_refused(desk: Desk) -> None:
    said = desk.run("token", "revoke", "zzz")
    assert said.code == ExitCode.NOT_FOUND
    assert "scavenger token list" in said.stderr
    assert "scavenger list" not in said.stderr


def test_who_cancels_what_has_ended_is_told_which_job_and_how_it_ended(desk: Desk) -> None:
    said = desk.run("cancel", ENDED, "--yes")
    assert said.code == ExitCode.CONFLICT
    assert f"{ENDED} has ended already: cancelled" in said.stderr
    assert f"scavenger show {ENDED}" in said.stderr
    assert not re.search(r"\bJOB\b", said.stderr)


def test_what_a_name_may_hold_is_said_in_words_and_once(desk: Desk) -> None:
    for words in (["a/b"], ["ci", "--project", "Vision"]):
        said = desk.run("token", "create", *words)
        assert said.code == ExitCode.USAGE
        assert "pattern" not in said.stderr
        assert "[" not in said.stderr
        assert said.stderr.count("letters") == 1, said.stderr


def test_who_shows_a_wrong_token_is_told_where_the_command_line_takes_one_from(desk: Desk) -> None:
    said = desk.run("list", token="scv_wrong")
    assert said.code == ExitCode.AUTHENTICATION
    assert "does not know this token" in said.stderr
    assert "SCAVENGER_TOKEN" in said.stderr
    assert "connection.json" in said.stderr
    assert "header" not in said.stderr
    assert "Authorization" not in said.stderr


@pytest.mark.parametrize("job", ["job_1", ENDED])
def test_a_job_without_a_curve_is_no_data(desk: Desk, job: str) -> None:
    said = desk.run("curve", job)
    assert (said.code, said.data) == (ExitCode.NOT_FOUND, "")
    assert f"({job}) has no curve" in said.stderr
    said = desk.run("curve", job, "-o", "json")
    assert said.code == ExitCode.NOT_FOUND
    assert json.loads(said.data)["points"] == []
    assert desk.run("curve", JOB).code == 0


def test_a_list_says_where_what_it_leaves_out_begins(desk: Desk) -> None:
    every = [*list_of(desk, "500").jobs]
    assert len(every) == ENTRIES + 1
    assert list_of(desk, "500").next_cursor is None
    assert list_of(desk, str(len(every))).next_cursor is None
    for limit in range(1, len(every)):
        shown = list_of(desk, str(limit))
        rest = httpx.get(
            f"{desk.controller.url}/v1/jobs",
            params={"cursor": shown.next_cursor or ""},
            headers={"Authorization": f"Bearer {KEYS.home_token}"},
        )
        listed = [*shown.jobs, *JobList.model_validate_json(rest.text).jobs]
        assert [job.id for job in listed] == [job.id for job in every]


def list_of(desk: Desk, limit: str) -> JobList:
    return JobList.model_validate_json(desk.run("list", "-o", "json", "--limit", limit).data)


REFERENCES = {
    "latest": "job_crowd249",
    "digits": "job_4",
    "other": "job_named",
    "job_named": "job_named",
    "job_na": "job_named",
    "nam": "job_named",
    "med": "job_named",
    "unknown": None,
    "job_unknown": None,
    "dig": None,
    "ame": None,
    "No Name%": None,
    "\x00": None,
    "_": None,
}


def test_a_job_is_found_among_many_with_one_request(engine: Engine, desk: Desk) -> None:
    with engine.begin() as connection:
        for number in range(250):
            at = NOW + timedelta(minutes=number)
            jobs.create(connection, f"job_crowd{number}", spec(name=f"crowd-{number}"), at)
    for reference, found in REFERENCES.items():
        said = desk.run("show", reference, "-o", "json")
        assert len(said.asked) == 1, (reference, said.asked)
        assert said.code == (ExitCode.SUCCESS if found else ExitCode.NOT_FOUND), reference
        assert not found or json.loads(said.data)["id"] == found
    assert "250 jobs match crowd" in desk.run("show", "crowd").stderr
    assert len(desk.run("show", "crowd-1").asked) == 1


def commands(group: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command there is, as its words."""
    for name, command in getattr(group, "load_all", lambda: group.commands)().items():
        if hasattr(command, "commands"):
            yield from commands(command, (*above, name))
        else:
            yield (*above, name)


def test_every_remedy_names_commands_that_exist_and_no_placeholder() -> None:
    known = {" ".join(words) for words in commands(MainCommands(name="scavenger"))}
    for code, kind in PROBLEM_TYPES.items():
        for _, path in ROUTES:
            shown = ProblemView(type="", title=kind.title, status=kind.status, detail="", code=code)
            remedy = error_for_problem(shown, filled(path)).remedy
            for words in re.findall(r"scavenger ((?:[a-z]+ ?)+)", remedy):
                parts = words.split()
                assert known & {" ".join(parts[:1]), " ".join(parts[:2])}, remedy
            assert not re.search(r"\b[A-Z]{3,}\b(?<!SCAVENGER)", remedy.replace("_TOKEN", ""))


def test_what_init_writes_is_planned_and_submitted_as_it_is(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nBATCH, EPOCHS = 64, 10\n")
    written = desk.run("init", str(tmp_path))
    assert written.code == ExitCode.SUCCESS, written.stderr
    assert desk.run("plan", written.data.strip()).code == ExitCode.SUCCESS
    submitted = desk.run("submit", written.data.strip(), "-o", "json")
    assert submitted.code == ExitCode.SUCCESS, submitted.stderr
    job = JobView.model_validate_json(submitted.data)
    assert job.spec["target"] == {"epochs": 10.0, "at_batch": 64}
    assert job.spec["run"]["directory"] == str(tmp_path)


@pytest.fixture
def job_file(desk: Desk, tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import torch\nBATCH, EPOCHS = 64, 10\n")
    return Path(desk.run("init", str(tmp_path)).data.strip())


def test_a_plan_that_would_spend_says_so_by_its_exit_code(desk: Desk, job_file: Path) -> None:
    assert desk.run("plan", str(job_file)).code == ExitCode.SUCCESS
    said = desk.run("plan", str(job_file), "--detailed-exitcode", "-o", "json")
    assert said.code == ExitCode.WOULD_SPEND == 3
    assert PlanView.model_validate_json(said.data).is_feasible


def test_a_plan_that_is_submitted_again_is_told_to_be_the_same_job(
    desk: Desk, job_file: Path
) -> None:
    planned = desk.run("plan", str(job_file), "-o", "name").data.strip()
    first, second = (desk.run("submit", "--plan", planned) for _ in range(2))
    assert (first.code, second.code) == (ExitCode.SUCCESS, ExitCode.SUCCESS)
    assert first.data == second.data
    assert "Submitted" in first.stderr
    assert "submitted before" in second.stderr
    assert "submitted before" not in first.stderr


def test_a_cap_is_taken_away_only_by_who_means_it(desk: Desk) -> None:
    refused = desk.run("limit", JOB, "--max-cost", "none")
    assert (refused.code, refused.asked) == (ExitCode.USAGE, [])
    assert "--no-cap" in refused.stderr
    assert "Nothing was done" in refused.stderr
    assert desk.run("limit", JOB, "--max-time", "none").code == ExitCode.SUCCESS
    meant = desk.run("limit", JOB, "--max-cost", "none", "--no-cap")
    assert meant.code == ExitCode.SUCCESS
    assert "max_cost to none" in meant.stderr


def test_a_choice_that_does_not_exist_is_explained_on_standard_error(desk: Desk) -> None:
    said = desk.run("explain", "job_1")
    assert (said.code, said.data) == (ExitCode.NOT_FOUND, "")
    assert "has no curve" in said.stderr
    assert json.loads(desk.run("explain", "job_1", "-o", "json").data)["points"] == []


def test_who_is_not_asked_is_told_that_nothing_was_done(desk: Desk) -> None:
    said = desk.run("resize", JOB, "--to", "cheapest")
    assert said.code == ExitCode.USAGE
    assert "Nothing was done" in said.stderr
    assert "--yes" in said.stderr


def test_a_client_takes_the_folder_of_a_job_from_its_file(desk: Desk, job_file: Path) -> None:
    with Client(desk.controller.url, KEYS.home_token) as client:
        assert client.submit(job_file).spec["run"]["directory"] == str(job_file.parent)
        planned = client.submit_plan(client.plan(job_file).id)
        assert planned.spec["run"]["directory"] == str(job_file.parent)
        text = client.submit(job_file.read_text())
        assert "directory" not in text.spec["run"]
        job_file.write_text("name: a\nmodel: {}\n")
        with pytest.raises(InvalidDocument) as refused:
            client.plan(job_file)
        assert refused.value.problems[0].line


def test_a_notebook_shows_a_plan_and_a_curve(desk: Desk, job_file: Path) -> None:
    with Client(desk.controller.url, KEYS.home_token) as client:
        plan, curve = client.plan(job_file), client.curve(JOB)
    assert f"<td>{plan.id}</td>" in plan._repr_html_()
    assert "$5.00" in plan._repr_html_()
    assert curve._repr_svg_() == draw_curve(curve)
    shown = plan.model_copy(update={"curve": curve, "why": "1 < 2"})._repr_html_()
    assert draw_curve(curve) in shown
    assert "1 &lt; 2" in shown
