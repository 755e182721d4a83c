"""All commands alike: help with an example, every ``-o``, exit codes, 60 and 200 columns."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import StringIO
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
from scavenger.client.client import Client
from scavenger.errors import ExitCode
from scavenger.schemas.jobs import JobPhase
from service.db import jobs
from tests.builders import NOW
from tests.contract.host import KEYS, Host, host
from tests.integration.every_command import ENDED, LINES, takes_output, walk

EVERY = {" ".join(words): command for words, command in walk()}
TYPED = {name: line for name, line in LINES.items() if line is not None}
READ = [name for name, line in TYPED.items() if line.view is not None]
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
    for width in (60, 200):
        code, data, _ = type_in([*name.split(), "--help"], width=width)
        assert code == ExitCode.SUCCESS
        assert max(map(len, data.splitlines())) <= width
        assert f"Example: scavenger {name}" in " ".join(data.split())


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


@pytest.mark.parametrize("words", [["doctor", *WHERE, "-o", "json"], ["doctor", *WHERE]])
def test_a_reader_that_went_away_ends_a_command_quietly(words: list[str], tmp_path: Path) -> None:
    """As `| head -1` does, once it has its line."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as pipe:
        said = run_program(*words, "--home", str(tmp_path), stdout=pipe)
    assert (said.returncode, said.stderr) == (ExitCode.CLOSED_PIPE, "")


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
