"""All commands alike: help with an example, every ``-o``, exit codes, 60 and 200 columns."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from csv import DictReader
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter
from rich.console import Console
from sqlalchemy import Engine
from typer.testing import CliRunner

from scavenger.cli.commands import NEIGHBOURS_WORDS
from scavenger.cli.main import COMMANDS, app
from scavenger.cli.output import Terminal
from scavenger.cli.watch import LONGEST_KIND, render_events
from scavenger.client.client import Client
from scavenger.errors import ExitCode
from scavenger.money import format_dollars, format_rate
from scavenger.schemas.events import EventView
from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.webhooks import EventKind
from service.db import jobs
from tests.builders import NOW
from tests.contract.host import JOB, KEYS, Host, host
from tests.integration.every_command import ENDED, LINES, takes_output, walk

EVERY = {" ".join(words): command for words, command in walk()}
TYPED = {name: line for name, line in LINES.items() if line is not None}
READ = [name for name, line in TYPED.items() if line.view is not None]
PANELS = {entry.panel for entry in COMMANDS} | {"Arguments", "Options", "Commands"}
HELPED = sorted(set(EVERY) - {"serve"})
STEPS = """\
workers,global_batch,step_time
1,32,0.05
1,128,0.17
2,32,0.04
2,128,0.1
4,32,0.05
4,128,0.08
2,64,0.06
"""
DOCUMENT = """\
model: {key: digits/mlp, dataset_size: 1500}
target: {epochs: 3, at_batch: 32}
limits: {workers: 1..2, batch: [32, 64], max_cost: 0.05 USD}
price: 0.13402 USD/h
run: {command: [python, train.py]}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "steps.csv").write_text(STEPS)
    (tmp_path / "job.yaml").write_text(DOCUMENT)
    (tmp_path / "uncapped.yaml").write_text(DOCUMENT.replace(", max_cost: 0.05 USD", ""))
    (tmp_path / "prices.csv").write_text("provider,region,item,price\naws,r,m,0.2\n")
    return tmp_path


@pytest.fixture
def controller(engine: Engine) -> Iterator[Host]:
    with host(engine) as controller:
        with engine.begin() as connection:
            for phase in (JobPhase.STARTING, JobPhase.CANCELLED):
                jobs.change_outcome(connection, ENDED, phase=phase, finished_at=NOW)
        yield controller


def type_in(words: list[str], connect: Any = None, width: int = 200) -> tuple[int, str, str]:
    """Type a line; returns exit code, data and chatter."""
    data, chatter = (
        Console(file=StringIO(), width=width, markup=False, emoji=False, highlight=False)
        for _ in range(2)
    )
    terminal = Terminal(data, chatter, connect or Client, lambda _: None)
    result = CliRunner().invoke(app, words, obj=terminal, env={"COLUMNS": str(width)})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    written = [getattr(console.file, "getvalue")() for console in (data, chatter)]  # noqa: B009
    return result.exit_code, written[0] + result.stdout, written[1] + result.stderr


def words_of(line: str, place: Path) -> list[str]:
    return line.format(place=place).split()


def test_every_command_has_a_line() -> None:
    assert set(LINES) == set(EVERY)
    programs = {name for name, line in LINES.items() if line is None}
    assert not {name for name in programs if takes_output(EVERY[name])}
    assert set(READ) == {name for name in EVERY if takes_output(EVERY[name])}


@pytest.mark.parametrize("name", HELPED)
def test_help_has_an_example_and_fits_the_terminal(name: str) -> None:
    for width in (60, 80, 200):
        code, data, _ = type_in([*name.split(), "--help"], width=width)
        assert code == ExitCode.SUCCESS
        assert max(map(len, data.splitlines())) <= width
        assert f"Example: scavenger {name}" in (shown := " ".join(data.split()))
        for paragraph in (EVERY[name].help or "").split("\n\n"):
            assert " ".join(paragraph.replace("``", "").split()) in shown
        for option in EVERY[name].params:
            assert option.param_type_name == "argument" or option.opts[-1] in shown


def test_a_page_breaks_lines_where_they_are_full_and_marks_nothing_up() -> None:
    """Also the pages of groups. What is left of a line has no room for the next word."""
    for name in ("", *sorted({each.split()[0] for each in EVERY if " " in each}), *HELPED):
        for width in (60, 80):
            _, data, _ = type_in([*name.split(), "--help"], width=width)
            assert not re.search(r"[{}`…╭]|<[a-z]+>|Value error", data), (name, data)
            lines = data.splitlines()
            for line, after in pairwise(lines):
                is_same = line and after and not line.startswith(" ") and not after.startswith(" ")
                if is_same and line not in PANELS:
                    assert len(line) + 1 + len(after.split()[0]) > width, (name, line, after)


@pytest.fixture
def connect(controller: Host) -> Callable[[], Client]:
    return lambda: Client(controller.url, KEYS.home_token)


def test_every_output_of_every_command_says_the_same(
    connect: Callable[[], Client], place: Path
) -> None:
    """The documents agree and are what the schema says, and names stand one a line."""
    for name in READ:
        line, written = TYPED[name], dict[str, str]()
        for output in ("json", "yaml", "name"):
            words = [*words_of(line.words, place), "-o", output]
            code, written[output], _ = type_in(words, connect)
            assert code == line.code, (words, written)
        document = json.loads(written["json"])
        TypeAdapter(line.view).validate_python(document)
        (other,) = yaml.safe_load_all(written["yaml"])
        assert shape_of(other) == shape_of(document), name
        names = written["name"].splitlines()
        assert bool(names) == line.has_names, name
        assert all(known.strip() == known != "" for known in names), (name, names)


def shape_of(document: Any) -> Any:
    """Return keys and kinds: values of two runs may differ, such as times."""
    match document:
        case dict():
            return {key: shape_of(value) for key, value in document.items()}
        case list():
            return [shape_of(value) for value in document]
        case float() | int():
            return "number"
        case _:
            return type(document).__name__


def test_a_list_holds_what_its_filters_let_through(connect: Callable[[], Client]) -> None:
    def names(*filters: str) -> list[str]:
        code, data, _ = type_in(["list", "-o", "name", *filters], connect)
        assert code == ExitCode.SUCCESS
        return data.split()

    every = names()
    assert len(every) > 2
    assert names("--phase", "cancelled") == [ENDED]
    assert {*names("--phase", "cancelled", "--phase", "pending")} > {ENDED}
    assert names("--match", ENDED) == [ENDED]
    assert names("--since", "2000-01-01") == every
    for nothing in (["--since", "2999-01-01"], ["--model", "none"], ["--project", "none"]):
        assert names(*nothing) == []


def test_a_curve_is_written_as_a_picture_and_as_rows(connect: Callable[[], Client]) -> None:
    _, shown, _ = type_in(["curve", JOB, "-o", "json"], connect)
    points = json.loads(shown)["points"]
    _, picture, _ = type_in(["curve", JOB, "-o", "svg"], connect)
    assert picture.startswith("<svg")
    _, rows, _ = type_in(["curve", JOB, "-o", "csv"], connect)
    assert [row["id"] for row in DictReader(StringIO(rows))] == [each["id"] for each in points]


@pytest.mark.parametrize("width", [60, 200])
def test_every_table_fits_the_terminal(
    connect: Callable[[], Client], place: Path, width: int
) -> None:
    for name in READ:
        line = TYPED[name]
        code, data, chatter = type_in(words_of(line.words, place), connect, width)
        assert code == line.code, (name, chatter)
        # A path or an id is never broken, so that it can be copied.
        rows = [row for row in (data + chatter).splitlines() if not re.search(r"[/_]", row)]
        assert all(len(row) <= width for row in rows), (name, rows)
        assert not re.search(r"[0-9] USD\b", data + chatter), (name, "money is written with $")
        for amount, per_hour in re.findall(r"\$([0-9,]*\.[0-9]+)(/h)?", data + chatter):
            written = format_rate if per_hour else format_dollars
            assert written(float(amount.replace(",", ""))) == f"${amount}{per_hour}", name


def test_exit_codes_are_alike(controller: Host, connect: Callable[[], Client], place: Path) -> None:
    for name, line in TYPED.items():
        if not line.asks:
            continue
        words = words_of(line.words, place)
        refused = type_in(words, lambda: Client(controller.url, "scv_wrong"))
        assert refused[:2] == (ExitCode.AUTHENTICATION, ""), (name, refused)
        silent = type_in(words, lambda: Client("http://127.0.0.1:9", "t"))
        assert silent[:2] == (ExitCode.UNREACHABLE, ""), (name, silent)
        if line.lacking:
            lacking = type_in(words_of(line.lacking, place), connect)
            assert lacking[:2] == (ExitCode.NOT_FOUND, ""), (name, lacking)
            assert "You can" in lacking[2], (name, lacking)


@pytest.mark.parametrize("name", HELPED)
def test_wrong_use_ends_with_2(name: str) -> None:
    if name == "agent":
        return  # its words go to the agent
    assert type_in([*name.split(), "--no-such-option"])[0] == ExitCode.USAGE
    if takes_output(EVERY[name]):
        assert type_in([*name.split(), "x", "-o", "xml"])[0] == ExitCode.USAGE


class AttendedTerminal(Terminal):
    """A terminal at which a user answers questions."""

    is_interactive = True


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_an_answer_that_is_no_changes_nothing(connect: Callable[[], Client], answer: str) -> None:
    terminal = AttendedTerminal(Console(file=StringIO()), Console(file=StringIO()), connect)
    result = CliRunner().invoke(app, ["cancel", JOB], obj=terminal, input=answer)
    assert result.exit_code == ExitCode.OTHER
    assert "Nothing was changed." in result.stderr
    with connect() as client:
        assert not client.get_job(JOB).phase.is_final


# What is typed, how it ends, and what is said of it.
WRONG = (
    (f"logs {JOB} --tail 0", ExitCode.USAGE, "write a whole number from 1 to 20000"),
    ("list --phase nonsense", ExitCode.USAGE, "'nonsense' is not one of 'pending'"),
    ("list --since nonsense", ExitCode.USAGE, "write e.g. 8h"),
    ("lst", ExitCode.USAGE, "Did you mean 'list'?"),
    ("--nonsense", ExitCode.USAGE, "scavenger [OPTIONS] COMMAND"),
    (f"resize {JOB} --to nonsense --yes", ExitCode.USAGE, "write knee, cheapest, fastest"),
    (f"resize {JOB} --to 0,0 --yes", ExitCode.USAGE, "write workers and batch, e.g. 2,64"),
    (f"resize {JOB} --to 999,128 --yes", ExitCode.USAGE, "999"),
    (f"resize {JOB} --yes", ExitCode.USAGE, "--to TARGET"),
    (f"probe {JOB} 2x64", ExitCode.USAGE, "write workers and batch, e.g. 2,64"),
    (f"limit {JOB}", ExitCode.USAGE, "--max-cost, --max-time or --objective"),
    (f"limit {JOB} --max-cost 5", ExitCode.USAGE, 'write a unit, e.g. "3.40 USD"'),
    (f"export {JOB} {{place}}", ExitCode.USAGE, "'--to'"),
    (f"export {JOB} {{place}}/job.yaml --to mlflow", ExitCode.USAGE, "is a file"),
    ("init /dev/null", ExitCode.OTHER, "/dev/null/job.yaml cannot be used: Not a directory"),
    ("init {place}/job.yaml", ExitCode.USAGE, "is a file"),
    ("plan {place}/nothing.yaml", ExitCode.USAGE, "no such file: scavenger init writes one"),
    ("plan {place}", ExitCode.USAGE, "is a directory: name a file in it"),
    ("submit", ExitCode.USAGE, "name a job document, or a plan"),
    ("submit {place}/uncapped.yaml", ExitCode.USAGE, "pass --no-cap if no limit is meant"),
    ("submit -", ExitCode.USAGE, "standard input:1:1: the document is empty"),
    ("submit --plan nonsense", ExitCode.NOT_FOUND, "scavenger plan job.yaml"),
    (f"curve {JOB} --decision 99", ExitCode.NOT_FOUND, f"scavenger show {JOB}"),
    ("webhook create nonsense", ExitCode.USAGE, "write https://"),
    ("webhook create https://x.example.org --event x", ExitCode.USAGE, "'x' is not one of"),
    ("webhook replay x y", ExitCode.USAGE, "write a whole number from 1 up"),
    ("admin restore {place}/nothing", ExitCode.USAGE, "does not exist"),
    ("demo --home /dev/null", ExitCode.OTHER, "/dev/null cannot be used: File exists"),
    ("--url nonsense list", ExitCode.UNREACHABLE, "this is no address: write e.g. http://"),
    ("list --url ftp://x", ExitCode.UNREACHABLE, "correct the address in --url or SCAVENGER_URL"),
)


@pytest.fixture
def shell(controller: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a shell that knows the controller."""
    monkeypatch.setenv("SCAVENGER_URL", controller.url)
    monkeypatch.setenv("SCAVENGER_TOKEN", KEYS.home_token)


def test_wrong_input_is_told_where_it_is_wrong_and_what_to_do(shell: None, place: Path) -> None:
    for line, code, words in WRONG:
        result = CliRunner().invoke(app, words_of(line, place), env={"COLUMNS": "300"})
        told = " ".join(result.stderr.split())
        assert (result.exit_code, result.stdout) == (code, ""), (line, told)
        assert words in told.replace("root [", "scavenger ["), (line, told)
        assert "✗" in told, line
        assert "You can" in told, (line, told)
        assert not re.search(r"(GET|POST) /v1|Value error|Input should", told), (line, told)


FORMER_OPTIONS = {"--json", "--controller", "--days", "--address"}


def test_an_option_has_one_spelling_and_means_one_thing_everywhere() -> None:
    spelled, kinds = dict[str, set[str]](), dict[str, set[bool]]()
    for name in TYPED:
        for option in EVERY[name].params:
            for word in option.opts if option.param_type_name == "option" else ():
                spelled.setdefault(word, set()).update(option.opts)
                kinds.setdefault(word, set()).add(option.is_flag)
    assert not FORMER_OPTIONS & {*spelled}
    assert all(len(flags) == 1 for flags in kinds.values())
    assert {word: names for word, names in spelled.items() if len(names) > 2} == {}


def test_the_agent_lists_its_commands_and_takes_the_same_options() -> None:
    listed = run_program("agent", "-h", stdout=subprocess.PIPE)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert re.findall(r"^  ([a-z]+)  ", listed.stdout, re.MULTILINE) == [
        "run",
        "audit",
        "profile",
        "sync",
        "selftest",
    ]
    shown = run_program("agent", "sync", "-h", stdout=subprocess.PIPE).stdout
    assert "--url TEXT" in shown
    assert "--controller" not in shown
    wrong = run_program("agent", "sync", stdout=subprocess.PIPE)
    assert (wrong.returncode, wrong.stdout) == (ExitCode.USAGE, "")
    assert "You can  read what it takes: scavenger agent sync --help" in wrong.stderr


def test_every_kind_of_event_has_its_column() -> None:
    """Kinds of eleven letters, such as vm_launched, pushed their message aside."""
    usual = [kind for kind in EventKind if len(kind) <= LONGEST_KIND]
    assert len(EventKind) - len(usual) <= 4, "only rare kinds are longer"
    console = Console(file=StringIO(), width=200)
    happened = [
        EventView(sequence=1, at=NOW, kind=kind, message="This.", data={}) for kind in usual
    ]
    console.print(render_events(happened))
    lines = getattr(console.file, "getvalue")().splitlines()  # noqa: B009
    assert len({line.index("This.") for line in lines}) == 1
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ  ", line) for line in lines)


@pytest.mark.parametrize("word", sorted({*NEIGHBOURS_WORDS} - {*EVERY}))
def test_a_neighbours_word_gets_an_answer(word: str) -> None:
    code, data, _ = type_in([word, "x", "--y"])
    assert (code, data) == (ExitCode.USAGE, "")


WHERE = ["--url", "http://127.0.0.1:9", "--token", "t"]


@pytest.mark.parametrize(
    "words",
    [[*WHERE, "show", "x"], ["show", *WHERE, "x"], ["show", "x", *WHERE], ["prices", *WHERE]],
)
def test_the_address_may_stand_anywhere(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "http://127.0.0.1:9" in result.stderr


def run_program(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from scavenger.cli import main; main()", *words]
    return subprocess.run(program, stderr=subprocess.PIPE, text=True, check=False, **options)


def test_the_version_is_said_without_a_controller() -> None:
    said = run_program("--version", stdout=subprocess.PIPE)
    assert (said.returncode, said.stderr) == (0, "")
    assert re.fullmatch(r"scavenger \d+\.\d+\.\d+\n", said.stdout)


def test_help_imports_no_command_and_nothing_heavy() -> None:
    program = (
        "import sys\nfrom scavenger.cli.main import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'httpx', 'pydantic', 'numpy', 'scipy', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    for entry in COMMANDS:
        assert entry.summary[:40] in shown.stdout
        assert len(entry.summary) <= 60


@pytest.mark.parametrize(
    "words",
    [["doctor", *WHERE, "-o", "json"], ["doctor", *WHERE], ["--help"], ["curve", "--help"]],
)
def test_a_reader_that_went_away_ends_a_command_quietly(words: list[str], tmp_path: Path) -> None:
    """As `| head -1` does, once it has its line."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as pipe:
        home = ["--home", str(tmp_path)] if "doctor" in words else []
        said = run_program(*words, *home, stdout=pipe)
    assert (said.returncode, said.stderr) == (ExitCode.CLOSED_PIPE, "")


def test_an_output_that_takes_no_more_is_told() -> None:
    with Path("/dev/full").open("w") as full:
        said = run_program("curve", "--help", stdout=full)
    assert said.returncode == ExitCode.OTHER
    assert "the output cannot be used: No space left on device" in said.stderr


def test_a_terminal_of_ascii_gets_twins_and_no_colour_where_none_is_wanted(tmp_path: Path) -> None:
    plain = {"PYTHONIOENCODING": "ascii", "NO_COLOR": "1", "FORCE_COLOR": "1"}
    words = ["doctor", *WHERE, "--home", str(tmp_path)]
    said = run_program(*words, stdout=subprocess.PIPE, env={**os.environ, **plain})
    assert said.returncode == ExitCode.OTHER, said.stderr
    assert "x  controller" in said.stdout
    assert "> start it with" in said.stdout
    assert said.stdout.isascii()
    assert "?" not in said.stdout
    assert "\x1b[3" not in said.stdout
