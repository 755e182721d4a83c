"""``scavenger simulate``, with few worlds."""

import json
from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

from scavenger.cli.main import app
from scavenger.cli.output import Terminal


def console(**changes):
    facts = {"file": StringIO(), "width": 80, "markup": False, "emoji": False, "highlight": False}
    return Console(**{**facts, **changes})


def run(*arguments, stderr=None):
    """Run a command; returns exit code, data and stderr."""
    desk = Terminal(console(), stderr or console(), connect=no_controller)
    result = CliRunner().invoke(app, ["simulate", *arguments], obj=desk)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    said = desk.stderr.file.getvalue() + result.stderr
    return result.exit_code, desk.stdout.file.getvalue() + result.stdout, said


def no_controller():
    raise AssertionError("a simulation needs no controller")


SMALL = ("--seeds", "1", "--strategy", "partial", "--workers", "8,20", "--batches", "384,1024")


def test_a_row_says_what_a_strategy_takes_against_the_oracle():
    code, data, stderr = run(*SMALL, "--strategy", "full")
    assert code == 0
    rows = {line.split()[0]: line for line in data.splitlines()[1:3]}
    assert rows.keys() == {"partial", "full"}
    assert "resnet18, objective knee" in data
    assert "4 configurations" in data
    assert max(map(len, data.splitlines())) <= 80
    assert stderr == ""


def test_a_bar_shows_the_way_on_a_terminal():
    shown = console(force_terminal=True)
    assert "partial" in run(*SMALL, stderr=shown)[2]


def test_json_holds_every_figure():
    code, data, _ = run(*SMALL, "--objective", "fastest", "--job", "transformer", "-o", "json")
    result = json.loads(data)
    assert code == 0
    assert result["comparison"]["job"] == "transformer"
    assert result["comparison"]["workers"] == [8, 20]
    summary = result["summaries"]["partial"]
    assert summary["runs"] == 1
    assert 3 <= summary["probes"] <= 6
    assert summary["time"]["median"] > result["oracle_time"] > 0
    assert result["times"]["best"] <= result["times"]["median"] <= result["times"]["worst"]


def test_a_calm_world_is_predicted_to_the_last_percent():
    calm = ("--jitter", "0", "--roughness", "0", "--stragglers", "0", "--drift", "1")
    _, data, _ = run(*SMALL, *calm, "--objective", "fastest", "-o", "json")
    assert json.loads(data)["summaries"]["partial"]["regret"]["median"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workers", "8,x"), "--workers: '8,x' is no list of whole numbers: write e.g."),
        (("--batches", "512,384"), "--batches: '512,384' must ascend from at least 1"),
        (("--workers", "80", "--batches", "16"), "the largest global batch 16 is below"),
        (("--strategy", "magic"), "'--strategy'"),
        (("--objective", "nicest"), "'--objective'"),
        (("--job", "vgg"), "'--job'"),
        (("--seeds", "0"), "'--seeds'"),
        (("--jitter", "-1"), "'--jitter'"),
        (("--stragglers", "2"), "'--stragglers'"),
        (("--drift", "0"), "'--drift'"),
    ],
)
def test_wrong_options_are_named_with_what_to_write(arguments, said):
    code, data, stderr = run(*arguments)
    assert code == 2
    assert data == ""
    assert " ".join(said.split()) in " ".join(stderr.replace("│", " ").split())
