"""What is installed from a wheel has all it needs: nothing of the repository is at hand then."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.api.problems import PROBLEM_TYPES
from tests.docs.test_docs import ROOT

PACKAGES = ("scavenger", "service", "worker_agent", "migrations")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of packages with a wheel of this tree installed into it, and nothing else."""
    directory = tmp_path_factory.mktemp("wheel")
    build = ["-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run([sys.executable, *build], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    install = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    place = directory / "site"
    subprocess.run([sys.executable, *install, "--target", place, wheel], check=True)
    return place


def run(site: Path, program: str, *arguments: str) -> str:
    """Run a program with what was installed; the repository comes after it on the path."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=site,
        env={"PYTHONPATH": str(site), "HOME": str(site), "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def tracked() -> Iterator[str]:
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, check=True
    )
    yield from listed.stdout.decode().splitlines()


def test_the_wheel_holds_every_file_of_the_packages(site: Path) -> None:
    assert [file for file in tracked() if not (site / file).is_file()] == []


DEMO = """
import json
from scavenger.cli.demo import example_job_file
from scavenger.cli.submit import read_job_file
example = example_job_file()
print(json.dumps({"at": str(example), "spec": read_job_file(example).document()}))
"""


def test_the_job_of_the_demo_is_in_the_wheel(site: Path) -> None:
    found = json.loads(run(site, DEMO))
    example = Path(found["at"]).parent
    assert example.is_relative_to(site)
    assert found["spec"]["run"]["directory"] == str(example)
    source = ROOT / "docs" / "examples" / "digits"
    for name in ("job.yaml", "train.py"):
        assert (example / name).read_bytes() == (source / name).read_bytes()


PROBLEMS = """
import json
from service.api.routes import problem_pages
print(json.dumps({"at": problem_pages.__file__, "pages": len(problem_pages.pages())}))
"""


def test_the_pages_about_problems_are_in_the_wheel(site: Path) -> None:
    found = json.loads(run(site, PROBLEMS))
    assert Path(found["at"]).is_relative_to(site)
    assert found["pages"] == len(PROBLEM_TYPES)
    assert (site / "scavenger/docs/problems.md").is_file()
