"""``scavenger plan --layouts`` prints what its page shows, and names what is wrong in a profile."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scavenger.cli.main import app
from scavenger.errors import ExitCode
from scavenger.job.validation import validate_job

PAGE = Path(__file__).parents[2] / "docs" / "layouts.md"
COMPARED = PAGE.read_text().split("## Compare the layouts")[1]
BLOCKS = re.findall(r"^```\w*\n(.*?)^```$", COMPARED, re.MULTILINE | re.DOTALL)
PROFILE, COMMAND, SHOWN = BLOCKS[0], BLOCKS[1], BLOCKS[2]

JOB = {
    "model": {"key": "vgg", "dataset_size": 50_000},
    "target": {"epochs": 30, "at_batch": 128},
    "limits": {"workers": 1, "batch": 128},
    "price": "0.10 USD/h",
    "run": {"command": ["python", "train.py"]},
}


def run(profile: Path, *words: str) -> tuple[int, str]:
    ran = CliRunner().invoke(app, ["plan", str(profile), "--layouts", *words])
    return ran.exit_code, ran.output


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "100")
    file = tmp_path / "profile.json"
    file.write_text(PROFILE)
    return file


def test_the_page_shows_what_the_command_prints(profile: Path) -> None:
    words = COMMAND.split()[4:]
    code, said = run(profile, *words)
    assert code == 0
    assert [line.rstrip() for line in said.splitlines()] == SHOWN.splitlines()


def test_programs_read_the_same_figures(profile: Path) -> None:
    code, said = run(profile, "--processes", "4", "--batch", "64", "-o", "json")
    found = json.loads(said)
    assert code == 0
    fastest = found["layouts"][0]
    assert fastest["processes"] == fastest["workers"] * fastest["pipeline"] * fastest["tensor"]
    assert fastest["seconds_low"] < fastest["seconds"] < fastest["seconds_high"]
    assert fastest["stages"][0]["first_block"] == "conv1"
    assert {"layout": "P=3 T=1", "why": "needs a multiple of 3 processes"} in found["refused"]


@pytest.mark.parametrize(
    ("changes", "words", "said"),
    [
        ({}, ["--processes", "4"], "--layouts needs --batch"),
        ({}, ["--batch", "4"], "--layouts needs --processes"),
        ({"heads": 0}, [], "heads must be finite and positive, got 0"),
        ({"blocks": []}, [], "a profile needs at least one block"),
        ({"links": 1}, [], "links: Unexpected keyword argument"),
        ({"inside": {"latency_seconds": -1, "bytes_per_second": 1}}, [], "inside: latency_seconds"),
        ({"across": None}, [], "across: Input should be an object"),
    ],
)
def test_what_cannot_be_used_is_named(
    profile: Path, changes: dict[str, Any], words: list[str], said: str
) -> None:
    profile.write_text(json.dumps(json.loads(PROFILE) | changes))
    code, output = run(profile, *(words or ["--processes", "4", "--batch", "64"]))
    assert code == 2
    assert said in " ".join(output.split())


def test_an_asynchronous_pipeline_is_proposed_as_the_job_document_writes_it(profile: Path) -> None:
    hosts = {
        "processes_per_machine": 8,
        "machine_memory_bytes": 1e12,
        "inside": {"latency_seconds": 0, "bytes_per_second": 5e8},
    }
    profile.write_text(json.dumps(json.loads(PROFILE) | hosts))
    words = ["--processes", "1,2,8,16", "--batch", "128"]
    code, said = run(profile, *words, "-o", "json")
    assert code == 0
    two, eight = json.loads(said)["pipelines"]
    assert (two["stages"], two["cuts"]) == ([1, 1], ["conv3"])
    assert (eight["stages"], eight["cuts"]) == ([7, 1], ["hidden"])
    assert 1 < two["speedup"] < eight["speedup"] < 8
    code, said = run(profile, *words)
    proposed = f"{{stages: {eight['stages']}, cuts: {json.dumps(eight['cuts'])}}}"
    assert proposed in " ".join(said.split())
    document = {"strategy": {"pipedream": {"stages": eight["stages"], "cuts": eight["cuts"]}}}
    spec = validate_job({**JOB, **document})
    assert spec.layout.processes == 8
    profile.write_text(json.dumps(json.loads(PROFILE) | hosts | {"concurrent_processes": 7}))
    fewer = json.loads(run(profile, *words, "-o", "json")[1])["pipelines"]
    assert fewer == [two]


def test_a_model_that_fits_no_process_ends_with_the_bytes_that_are_missing(profile: Path) -> None:
    profile.write_text(json.dumps(json.loads(PROFILE) | {"machine_memory_bytes": 1e9}))
    code, said = run(profile, "--processes", "1", "--batch", "64")
    assert code == ExitCode.INFEASIBLE
    assert "a process needs" in " ".join(said.split())


def test_a_plan_of_a_job_takes_no_processes(profile: Path) -> None:
    ran = CliRunner().invoke(app, ["plan", str(profile), "--processes", "4"])
    assert ran.exit_code == 2
    assert "belong to --layouts" in " ".join(ran.output.split())
