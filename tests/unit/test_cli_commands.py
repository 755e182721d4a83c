"""The commands, each run against a fake controller that keeps the REST contract."""

import json
import os
import re
import subprocess
import sys
import threading
import webbrowser
from dataclasses import dataclass, field
from hashlib import sha256
from io import StringIO
from pathlib import Path

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from scavenger.cli import programs
from scavenger.cli.demo import cancel_running_jobs, run_demo, stop_process, wait_until_ready
from scavenger.cli.errors import (
    AmbiguousJob,
    CommandError,
    ConfirmationRequired,
    ControllerStartFailed,
    CurveUnavailable,
    InvalidInput,
    JobNotFound,
)
from scavenger.cli.jobs import exit_code_of_job
from scavenger.cli.logs import follow_logs
from scavenger.cli.main import COMMANDS as TABLE
from scavenger.cli.main import app
from scavenger.cli.options import pick_job
from scavenger.cli.output import OutputFormat, Terminal
from scavenger.cli.submit import read_job_file
from scavenger.cli.watch import follow_updates
from scavenger.client.client import Client
from scavenger.client.documents import document_format
from scavenger.client.errors import ClientError, NoToken, Unreachable, error_for_problem
from scavenger.errors import ExitCode
from scavenger.job.validation import parse_job
from scavenger.schemas.access import SignInCodeView
from scavenger.schemas.jobs import CodeView, JobPhase
from service.settings import Settings
from tests.unit.test_cli_rendering import DOCUMENT, ID, curve_view, event, job_view, problem

# Developers need the first two, the third may hold a password, and the last is OpenTelemetry's.
BY_ENVIRONMENT = {"boot_delay", "pg_bin", "simulated_job", "database_url", "otlp_endpoint"}
OTHER = "job_019aa0b4c8e5f3d2a72"


@dataclass
class FakeController:
    """Answers as the controller does; each look at a job shows the next of its states."""

    jobs: dict = field(default_factory=dict)
    curves: list = field(default_factory=list)
    submitted: list = field(default_factory=list)
    cancelled: list = field(default_factory=list)
    code: dict = field(default_factory=dict)
    silences: int = 0
    codes: int = 0

    def __call__(self, request):
        match request.method, request.url.path.split("/")[1:]:
            case "POST", ["v1", "jobs"]:
                self.submitted.append(json.loads(request.content))
                states = self.jobs[list(self.jobs)[len(self.submitted) - 1]]
                return view(states[0], 201)
            case "GET", ["v1", "jobs"]:
                found = [json.loads(states[0].model_dump_json()) for states in self.jobs.values()]
                return httpx.Response(200, json={"jobs": found, "next_cursor": None})
            case "PUT", ["v1", "code", digest]:
                self.code[digest] = request.read()
                return view(code_view(digest), 201)
            case "GET", ["v1", "code", digest] if digest in self.code:
                return view(code_view(digest))
            case "POST", ["v1", "session", "codes"]:
                self.codes += 1
                code = SignInCodeView(code=f"scc_{self.codes}", expires_at="2026-01-01T00:00:00Z")
                return view(code, 201)
            case "GET", ["v1", "models"]:
                return httpx.Response(200, json={"models": []})
            case method, ["v1", "jobs", job, *rest] if job in self.jobs:
                return self.about(method, self.jobs[job], rest, request)
            case _:
                return view(problem(404, title="No such job", code="not_found"), 404)

    def about(self, method, states, rest, request):
        match rest:
            case []:
                if self.silences and len(states) == 1:
                    self.silences -= 1
                    raise httpx.ConnectError("no controller")
                return view(states.pop(0) if len(states) > 1 else states[0])
            case ["curve"]:
                return view(self.curves.pop(0) if len(self.curves) > 1 else self.curves[0])
            case ["events"] if request.headers["accept"] == "text/event-stream":
                kind = {"Content-Type": "text/event-stream"}
                return httpx.Response(200, headers=kind, text="retry: 2000\n\n:\n\n")
            case ["events"]:
                after = int(request.url.params["after"])
                found = [json.loads(event(n).model_dump_json()) for n in (1, 2) if n > after]
                return httpx.Response(200, json={"events": found, "next_cursor": None})
            case ["actions", "cancel"] if method == "POST":
                if states[0].phase.is_final:
                    title = "The job has ended"
                    return view(problem(409, title=title, code="conflict_state"), 409)
                self.cancelled.append(states[0].id)
                return view(states[0], 202)


def code_view(digest):
    return CodeView(sha256=digest, size=1, created_at="2026-01-01T00:00:00Z")


def view(answer, status=200):
    return httpx.Response(status, text=answer.model_dump_json())


def console():
    return Console(file=StringIO(), width=100, markup=False, emoji=False, highlight=False)


def terminal(controller, pauses=None, **changes):
    """Return a terminal that writes to memory and whose pauses take no time."""
    pause = (pauses if pauses is not None else []).append

    def connect():
        return Client("http://127.0.0.1:1", "t", transport=httpx.MockTransport(controller))

    return Terminal(console(), console(), connect, pause)


def run(controller, *arguments, given=None):
    """Run a command; returns exit code, data and stderr."""
    desk = terminal(controller)
    result = CliRunner().invoke(app, list(arguments), obj=desk, input=given)
    unexpected = result.exception
    if unexpected is not None and not isinstance(unexpected, SystemExit):
        raise unexpected
    stderr = desk.stderr.file.getvalue() + result.stderr
    return result.exit_code, desk.stdout.file.getvalue() + result.stdout, stderr


def one(*states):
    return FakeController({ID: list(states or (job_view(),))}, [curve_view()])


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(DOCUMENT.replace(", directory: /srv/digits", ""))
    return path


@pytest.mark.parametrize(
    ("phase", "changes", "code"),
    [
        (JobPhase.SUCCEEDED, {}, 0),
        (JobPhase.FAILED, {"worker_exit_code": 1, "reason": "worker-2 exited with code 1"}, 10),
        (JobPhase.FAILED, {"worker_exit_code": 1, "reason": "rlimit: over the limit"}, 10),
        (JobPhase.FAILED, {"worker_exit_code": 0, "reason": "ended; raise target.max_epochs"}, 10),
        (JobPhase.FAILED, {"reason": "no configuration meets the limits; the nearest …"}, 7),
        (JobPhase.FAILED, {"reason": "24 machines were needed where 16 are allowed"}, 10),
        (JobPhase.CAPPED, {"reason": "max_cost reached; raise limits.max_cost"}, 8),
        (JobPhase.CANCELLED, {}, 11),
        (JobPhase.CAPPED, {"lacks_capacity": True, "reason": "max_time reached after 9 s"}, 12),
        (JobPhase.FAILED, {"lacks_capacity": True, "reason": "none: 16 are the limit"}, 12),
        (JobPhase.FAILED, {"diverged": True, "worker_exit_code": 1}, 13),
        (JobPhase.FAILED, {"diverged": True, "lacks_capacity": True}, 13),
        (JobPhase.CAPPED, {"diverged": True, "reason": "max_time reached; loss became NaN"}, 13),
    ],
)
def test_a_job_ends_with_its_exit_code(phase, changes, code):
    ended = job_view(phase, **changes)
    assert exit_code_of_job(ended) == code
    assert run(one(job_view(), ended), "watch", ID)[0] == code
    assert run(one(job_view(lacks_capacity=True), ended), "watch", ID)[0] == code
    assert run(one(job_view(), ended), "watch", ID, "-o", "json")[0] == code


@pytest.mark.parametrize("phase", [phase for phase in JobPhase if not phase.is_final])
def test_a_job_that_goes_on_has_no_exit_code(phase):
    with pytest.raises(ValueError, match="has not ended"):
        exit_code_of_job(job_view(phase))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (error_for_problem(problem(422)), 2),
        (InvalidInput("job.yaml", []), 2),
        (AmbiguousJob("x", []), 2),
        (ConfirmationRequired("?", "--yes"), 2),
        (NoToken(), 4),
        (error_for_problem(problem(401)), 4),
        (error_for_problem(problem(403)), 4),
        (error_for_problem(problem(404)), 5),
        (JobNotFound("x"), 5),
        (CurveUnavailable(job_view(), ""), 5),
        (error_for_problem(problem(409)), 6),
        (Unreachable("", ""), 20),
        (error_for_problem(problem(500)), 21),
        (ControllerStartFailed("", ""), 21),
        (ClientError(), 21),
        (CommandError(), 1),
    ],
)
def test_an_error_ends_with_its_exit_code(error, code):
    assert error.exit_code == code


def test_usage_errors_end_with_2():
    assert run(one(), "list", "--no-such-option")[0] == 2
    assert run(one(), "no-such-command")[0] == 2
    assert run(one(), "show")[0] == 2


COMMANDS = sorted(entry.name for entry in TABLE if entry.example or entry.name == "serve")


def test_the_tree_is_complete():
    expected = (
        "agent cancel cost curve dashboard demo doctor evaluate events explain export "
        "fit init limit list logs offers orders pause plan probe resize resume serve show "
        "simulate stacks submit version watch"
    )
    assert expected.split() == COMMANDS


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {"serve"}))
def test_every_help_has_an_example(command):
    code, data, _ = run(one(), command, "--help")
    assert code == 0
    assert f"Example: scavenger {command}" in data


def test_the_help_of_serve_is_that_of_its_program():
    program = [sys.executable, "-m", "service", "--help"]
    narrow = {**os.environ, "COLUMNS": "60"}
    shown = subprocess.run(program, capture_output=True, text=True, check=True, env=narrow).stdout
    assert "Example: scavenger serve" in shown
    assert max(map(len, shown.splitlines())) <= 60
    assert "(default: 8321)" in " ".join(shown.split())
    assert not re.search(r"null|\(default: \)|factory|False", shown)
    named = set(re.findall(r"^  --([a-z-]+)", shown, re.MULTILINE))
    options = {name.replace("_", "-") for name in Settings.model_fields}
    assert options - named == {name.replace("_", "-") for name in BY_ENVIRONMENT}


@pytest.mark.parametrize(
    "arguments", [["list"], ["show", ID], ["curve", ID], ["events", ID], ["model", "list"]]
)
def test_read_commands_write_the_view_as_json(arguments):
    code, data, stderr = run(one(), *arguments, "-o", "json")
    assert code == 0
    assert isinstance(json.loads(data), dict)
    assert "{" not in stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["list"], ID),
        (["show", "latest"], "searched: 4 probes"),
        (["curve", "digits"], "★ knee · ✔ chosen"),
        (["events", "a71"], "probe 3 of 4"),
        (["events", ID, "--follow"], "probe 3 of 4"),
    ],
)
def test_read_commands_write_tables(arguments, expected):
    code, data, _ = run(one(job_view(), job_view(JobPhase.SUCCEEDED)), *arguments)
    assert code == 0
    assert expected in data


def test_an_empty_list_writes_nothing_but_says_what_to_do():
    code, data, stderr = run(FakeController(), "list")
    assert (code, data) == (0, "")
    assert "scavenger submit" in stderr


def test_a_missing_controller_says_how_to_start_one():
    def answer(request):
        raise httpx.ConnectError("Connection refused")

    code, data, stderr = run(answer, "list")
    assert (code, data) == (20, "")
    assert "start it with: scavenger serve" in stderr


def test_a_job_is_submitted_with_the_directory_of_its_file(document):
    controller = one()
    code, data, stderr = run(controller, "submit", str(document), "--name", "again")
    assert (code, data) == (0, f"{ID}\n")
    assert f"Next: scavenger watch {ID}" in stderr
    assert "16 configurations" in stderr
    (sent,) = controller.submitted
    assert sent["run"]["directory"] == str(document.parent)
    assert sent["name"] == "again"


def test_a_job_without_a_price_is_shown_with_the_one_that_the_controller_wrote_down(tmp_path):
    document = tmp_path / "unpriced.yaml"
    document.write_text(DOCUMENT.replace("price: 0.13402 USD/h\n", ""))
    planned = parse_job(DOCUMENT.replace("0.13402", "0.24715")).document()
    controller = one(job_view(spec=planned))
    code, data, stderr = run(controller, "submit", str(document))
    assert (code, data) == (0, f"{ID}\n")
    assert "one worker costs $0.24715/h" in stderr
    (sent,) = controller.submitted
    assert "price" not in sent


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """A directory that a shell is in, beside that of the document."""
    place = tmp_path / "shell"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def sent_from(shell, controller, *arguments, **given):
    code, _, stderr = run(controller, "submit", *arguments, **given)
    assert code == 0, stderr
    (sent,) = controller.submitted
    assert sent["run"]["directory"] == str(shell)
    return sent


def test_a_document_on_standard_input_runs_where_the_shell_is(shell, document):
    text = document.read_bytes()
    assert sent_from(shell, one(), "-", given=text)["name"] == "digits"
    assert sent_from(shell, one(), "-", "--name", "again", given=text)["name"] == "again"


@pytest.mark.parametrize("name", ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_every_name_of_standard_input_is_standard_input(shell, document, name, kind):
    """In a process of its own, whose standard input is what the name leads to."""
    text = document.read_bytes()
    program = (
        "import json, sys; from pathlib import Path; "
        "from scavenger.cli.submit import read_job_file; "
        "print(read_job_file(Path(sys.argv[1])).run.directory)"
    )
    with document.open("rb") as file:
        ran = subprocess.run(
            [sys.executable, "-c", program, name],
            cwd=shell,
            stdout=subprocess.PIPE,
            check=True,
            **({"stdin": file} if kind == "file" else {"input": text}),
        )
    assert ran.stdout.decode().strip() == str(shell)


def test_what_a_pipe_brings_runs_where_the_shell_is(shell, document, tmp_path):
    reader, writer = os.pipe()
    os.write(writer, document.read_bytes())
    os.close(writer)
    sent_from(shell, one(), f"/dev/fd/{reader}")
    os.close(reader)
    fifo = tmp_path / "job.yaml.fifo"
    os.mkfifo(fifo)
    thread = threading.Thread(target=fifo.write_bytes, args=(document.read_bytes(),))
    thread.start()
    sent_from(shell, one(), str(fifo))
    thread.join()


def test_what_is_wrong_on_standard_input_is_named_so(shell):
    code, _, stderr = run(one(), "submit", "-", given=b"limits: 3\n")
    assert code == 2
    assert "standard input:1:1: limits: " in "".join(stderr.split("\n"))
    assert run(one(), "submit", "-", given=b"\xff\xfe")[0] == 2
    assert run(one(), "submit", str(shell))[0] == 2, "a directory is no document"


@pytest.mark.parametrize("flag", ["--watch", "--wait"])
def test_submitting_can_end_as_the_job_does(document, flag):
    failed = job_view(JobPhase.FAILED, worker_exit_code=3, reason="worker-1 exited with code 3")
    code, data, stderr = run(one(job_view(), failed), "submit", str(document), flag)
    assert code == 10
    assert data.startswith(f"{ID}\n")
    assert "worker-1 exited with code 3" in stderr


def test_a_bad_document_is_never_sent(document):
    document.write_text("limits: 3\nprice: 1\n")
    controller = one()
    code, data, stderr = run(controller, "submit", str(document))
    assert (code, data, controller.submitted) == (2, "", [])
    assert "job.yaml:1:1: limits: " in "".join(stderr.split("\n"))
    assert "job.yaml:2:1: price: " in "".join(stderr.split("\n"))


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b""])
def test_an_unreadable_file_is_a_bad_document(tmp_path, content):
    path = tmp_path / "job.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput):
        read_job_file(path)


def test_a_bad_name_is_refused_here(document):
    with pytest.raises(InvalidInput, match="--name"):
        read_job_file(document, "No Name")


@pytest.mark.parametrize(
    ("name", "text", "media"),
    [
        ("a.json", "", "json"),
        ("a.YML", "{}", "yaml"),
        ("a.yaml", "", "yaml"),
        ("job", ' {"a": 1}', "json"),
        ("job", "a: 1", "yaml"),
    ],
)
def test_media_follow_from_the_name_or_the_text(name, text, media):
    assert document_format(Path(name), text) == media


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("latest", ID),
        (ID, ID),
        (OTHER, OTHER),
        ("digits", ID),
        ("older", OTHER),
        ("a72", OTHER),
        ("2a71", ID),
    ],
)
def test_a_job_goes_by_many_names(reference, found):
    jobs = [job_view(), job_view(id=OTHER, name="older"), job_view(id="job_X", name="digits")]
    assert pick_job(jobs, reference).id == found


def test_a_beginning_of_several_ids_is_ambiguous():
    jobs = [job_view(), job_view(id=OTHER)]
    with pytest.raises(AmbiguousJob) as caught:
        pick_job(jobs, "019aa")
    assert caught.value.candidates == (ID, OTHER)
    with pytest.raises(JobNotFound):
        pick_job(jobs, "nothing")
    assert run(one(), "show", "job_no")[0] == 5


def test_cancelling_needs_an_answer_or_yes():
    controller = one()
    code, _, stderr = run(controller, "cancel", ID)
    assert code == 2
    assert "pass --yes" in stderr
    assert controller.cancelled == []
    assert run(controller, "cancel", "digits", "--yes")[:2] == (0, f"{ID}\n")
    assert controller.cancelled == [ID]


def test_what_has_ended_cannot_be_cancelled():
    assert run(one(job_view(JobPhase.SUCCEEDED)), "cancel", ID)[0] == 6


def test_watching_writes_a_line_per_change_and_says_how_it_ended():
    states = [job_view(), job_view(), job_view(elapsed=22), job_view(JobPhase.SUCCEEDED)]
    code, data, stderr = run(one(*states), "watch", ID)
    assert code == 0
    assert data.count("training") == 1
    assert data.count("succeeded") == 1
    assert data.count("probe 3 of 4") == 2
    assert f"Next: scavenger curve {ID}" in stderr


@pytest.mark.parametrize("words", [["watch", ID], ["events", ID, "--follow"]])
def test_leaving_a_watched_job_leaves_it_running(words):
    def interrupt(_):
        raise KeyboardInterrupt

    controller = one(job_view(), job_view())
    desk = terminal(controller)
    desk = Terminal(desk.stdout, desk.stderr, desk.connect, interrupt)
    result = CliRunner().invoke(app, words, obj=desk)
    assert result.exit_code == 130
    assert f"{ID} keeps running" in desk.stderr.file.getvalue()
    assert controller.cancelled == []


def test_leaving_the_lines_of_a_job_leaves_it_running():
    def interrupted():
        raise KeyboardInterrupt
        yield

    desk = terminal(one())
    assert follow_logs(desk, ID, interrupted(), OutputFormat.TABLE) == (130, False)
    assert f"{ID} keeps running" in desk.stderr.file.getvalue()


def test_a_controller_that_restarts_is_waited_for():
    controller = one(job_view(), job_view(JobPhase.SUCCEEDED))
    controller.silences = 3
    pauses = []
    desk = terminal(controller, pauses)
    seen = list(follow_updates(desk.connect(), ID, desk.pause))
    assert [update.is_stale for update in seen] == [False, True, True, True, False]
    assert sum(len(update.new_events) for update in seen) == 2
    assert len(pauses) == 4


def test_a_controller_that_stays_away_is_given_up():
    controller = one(job_view(), job_view(JobPhase.SUCCEEDED))
    controller.silences = 1000
    pauses = []
    desk = terminal(controller, pauses)
    with pytest.raises(Unreachable):
        list(follow_updates(desk.connect(), ID, desk.pause))
    assert 25 <= sum(pauses) <= 35


def test_a_terminal_gets_a_picture():
    desk = terminal(one(job_view(), job_view(JobPhase.SUCCEEDED)))
    screen = Console(file=StringIO(), width=100, force_terminal=True, _environ={"TERM": "xterm"})
    result = CliRunner().invoke(
        app, ["watch", ID], obj=Terminal(screen, desk.stderr, desk.connect, desk.pause)
    )
    assert result.exit_code == 0
    assert "8.2 of ≈12.5 epochs" in screen.file.getvalue()


@pytest.mark.parametrize(
    ("command", "module", "words"),
    [
        ("serve", "service", []),
        ("serve", "service", ["--port", "0", "--home", "/srv/data"]),
        ("serve", "service", ["--help"]),
        ("agent", "worker_agent", ["run", "--out", "rows", "--", "python", "train.py", "--help"]),
    ],
)
def test_a_program_gets_every_argument_after_its_name(monkeypatch, command, module, words):
    ran = []
    monkeypatch.setattr(programs, "replace_process", lambda *words: ran.append(words))
    assert CliRunner().invoke(app, [command, *words]).exit_code == 0
    assert ran == [(module, *words)]


def test_the_controller_says_which_extra_it_needs(monkeypatch):
    monkeypatch.setattr(programs.importlib.util, "find_spec", lambda _: None)
    code, _, stderr = run(one(), "serve")
    assert code == 1
    assert "pip install 'scavenger[controller]'" in stderr


@pytest.mark.parametrize(
    ("first", "second", "curves", "code"),
    [
        (JobPhase.SUCCEEDED, JobPhase.SUCCEEDED, [curve_view(), curve_view(probes=[])], 0),
        (JobPhase.SUCCEEDED, JobPhase.SUCCEEDED, [curve_view(), curve_view()], 1),
        (JobPhase.SUCCEEDED, JobPhase.CAPPED, [curve_view(), curve_view(probes=[])], 8),
        (JobPhase.CANCELLED, JobPhase.SUCCEEDED, [curve_view()], 11),
    ],
)
def test_the_demo_succeeds_only_if_both_jobs_do_and_the_second_does_not_search(
    first, second, curves, code
):
    jobs = {
        ID: [job_view(), job_view(first)],
        OTHER: [job_view(id=OTHER), job_view(second, id=OTHER)],
    }
    controller = FakeController(jobs, curves)
    desk = terminal(controller)
    assert run_demo(desk, desk.connect(), parse_job(DOCUMENT)) == code
    assert controller.cancelled == []
    assert "While it trained, 4 probes" in desk.stdout.file.getvalue()


class Browser:
    """A browser with windows, or with none."""

    name = "a browser"

    def __init__(self, has_windows=True):
        self.opened, self.has_windows = [], has_windows

    def open(self, address):
        self.opened.append(address)
        return self.has_windows


def no_browser():
    raise webbrowser.Error("could not locate runnable browser")


def test_the_dashboard_opens_signed_in_by_a_code_that_no_server_sees(monkeypatch):
    browser = Browser()
    monkeypatch.setattr(webbrowser, "get", lambda: browser)
    code, data, stderr = run(one(), "dashboard", "latest")
    assert (code, data) == (0, "")
    assert browser.opened == [f"http://127.0.0.1:1/jobs/{ID}#code=scc_1"]
    assert "scc_" not in stderr
    assert run(one(), "dashboard")[0] == 0
    assert browser.opened[1] == "http://127.0.0.1:1/#code=scc_1"


@pytest.mark.parametrize(
    "found",
    [
        no_browser,
        lambda: webbrowser.GenericBrowser("w3m"),
        lambda: webbrowser.GenericBrowser(["/usr/bin/lynx", "%s"]),
        lambda: Browser(False),
    ],
)
def test_without_a_browser_the_address_is_printed(monkeypatch, found):
    monkeypatch.setattr(webbrowser, "get", found)
    code, data, stderr = run(one(), "dashboard")
    assert (code, data) == (0, "http://127.0.0.1:1/#code=scc_1\n")
    assert "within a minute" in stderr
    asked = run(one(), "dashboard", "digits", "--no-browser")
    assert asked[1] == f"http://127.0.0.1:1/jobs/{ID}#code=scc_1\n"


def test_a_browser_of_ones_own_is_opened(monkeypatch, tmp_path):
    own, seen = tmp_path / "own-browser", tmp_path / "seen"
    own.write_text(f'#!/bin/sh\nprintf %s "$1" > "{seen}"\n')
    own.chmod(0o755)
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser([str(own), "%s"]))
    code, data, stderr = run(one(), "dashboard")
    assert (code, data) == (0, "")
    assert "Opened" in stderr
    assert seen.read_text() == "http://127.0.0.1:1/#code=scc_1"


def test_the_demo_opens_the_curve_of_its_first_job(monkeypatch):
    browser = Browser()
    monkeypatch.setattr(webbrowser, "get", lambda: browser)
    ended = job_view(JobPhase.SUCCEEDED)
    jobs = {ID: [job_view(), ended], OTHER: [job_view(id=OTHER), job_view(ended.phase, id=OTHER)]}
    for shows_page in (False, True):
        controller = FakeController(
            {key: list(states) for key, states in jobs.items()},
            [curve_view(), curve_view(probes=[])],
        )
        desk = terminal(controller)
        assert (
            run_demo(desk, desk.connect(), parse_job(DOCUMENT), shows_page=shows_page)
            == ExitCode.SUCCESS
        )
        message = desk.stderr.file.getvalue()
        assert ("Its dashboard is at http://127.0.0.1:1/" in message) is not shows_page
    assert browser.opened == [f"http://127.0.0.1:1/jobs/{ID}/curve#code=scc_1"]


def test_leaving_the_demo_early_ends_its_job_and_waits_for_its_workers():
    controller = one(job_view(), job_view(), job_view(JobPhase.CANCELLED))
    pauses = []
    desk = terminal(controller, pauses)
    cancel_running_jobs(desk, desk.connect(), [ID])
    assert controller.cancelled == [ID]
    assert len(pauses) <= 2


class Ended:
    """A process that is over."""

    returncode = 1

    def poll(self):
        return self.returncode


def test_a_controller_that_does_not_come_up_is_reported_with_its_last_lines(tmp_path):
    (tmp_path / "controller.log").write_text("a\nthe database cannot run\n")
    with pytest.raises(ControllerStartFailed, match="exit code 1") as caught:
        wait_until_ready(Ended(), tmp_path, None, lambda _: None)
    assert "the database cannot run" in caught.value.tail
    assert caught.value.exit_code == ExitCode.SERVER


class Stubborn:
    """A process that ends only when it is killed."""

    def __init__(self):
        self.calls = []
        self.is_over = False

    def terminate(self):
        self.calls.append("terminate")

    def wait(self, timeout=None):
        if timeout is not None:
            raise KeyboardInterrupt

    def poll(self):
        return 0 if self.is_over else None

    def kill(self):
        self.calls.append("kill")
        self.is_over = True


def test_a_controller_that_does_not_stop_is_killed():
    process = Stubborn()
    stop_process(process)
    assert process.calls == ["terminate", "kill"]


@pytest.fixture
def source(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("print('hello')")
    return source


def test_code_is_sent_once_and_named_in_the_document(document, source):
    controller = FakeController({ID: [job_view()], OTHER: [job_view(id=OTHER)]}, [])
    code, stdout, stderr = run(controller, "submit", str(document), "--code", str(source))
    assert (code, stdout.strip()) == (0, ID)
    assert "Code: 1 file, " in stderr
    assert stderr.count("packed, sent") == 1
    ((digest, archive),) = controller.code.items()
    assert sha256(archive).hexdigest() == digest
    assert f". of the code {digest[:12]}" in stderr
    assert controller.submitted[0]["run"]["code"] == digest
    assert "directory" not in controller.submitted[0]["run"]
    _, _, again = run(controller, "submit", str(document), "--code", str(source))
    assert "packed, the controller has it already" in again
    assert len(controller.code) == 1


def test_a_document_may_name_a_folder_in_the_code(document, source):
    text = document.read_text()
    controller = one()
    document.write_text(text.replace("run: {", "run: {directory: src, "))
    assert run(controller, "submit", str(document), "--code", str(source))[0] == 0
    assert controller.submitted[0]["run"]["directory"] == "src"
    document.write_text(text.replace("run: {", "run: {directory: /srv/train, "))
    code, _, stderr = run(controller, "submit", str(document), "--code", str(source))
    assert code == ExitCode.USAGE
    assert "is absolute, and with run.code the command runs in the code" in " ".join(stderr.split())


def test_nothing_is_sent_of_code_that_cannot_travel(document, source):
    (source / "data").symlink_to("/srv/data")
    controller = one()
    code, _, stderr = run(controller, "submit", str(document), "--code", str(source))
    assert code == ExitCode.USAGE
    assert "cannot be sent" in " ".join(stderr.split())
    # A long path is broken wherever the line ends.
    assert "source/data:isalinkto/srv/data" in "".join(stderr.split())
    assert not controller.code
    assert not controller.submitted
