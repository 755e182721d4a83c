"""What is installed from a wheel has all it needs: nothing of the repository is at hand then."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    files = listed.stdout.decode().splitlines()
    yield from (file for file in files if not file.startswith("service/dashboard/"))


ONLY = """
import sys
from importlib.metadata import packages_distributions
allowed = set(sys.argv.pop(1).split(","))
ours = {"scavenger", "service", "worker_agent", "migrations"}
forbidden = {
    name for name, of in packages_distributions().items()
    if name not in ours and not allowed & {each.lower().replace("_", "-") for each in of}
}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in forbidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


def closure(site: Path, *extras: str) -> set[str]:
    """Distributions that pip installs with the wheel and some of its extras."""
    (own,) = distributions(name="scavenger", path=[str(site)])
    found: set[str] = set()
    waiting = [(own, frozenset(extras))]
    while waiting:
        distribution, wanted = waiting.pop()
        for text in distribution.requires or []:
            needed = Requirement(text)
            name = canonicalize_name(needed.name)
            marks = [{"extra": extra} for extra in wanted] or [{"extra": ""}]
            if needed.marker is not None and not any(map(needed.marker.evaluate, marks)):
                continue
            if name == "scavenger":
                waiting.append((own, frozenset(needed.extras)))
            elif name not in found:
                found.add(name)
                of = next(iter(distributions(name=name)), None)
                waiting += [] if of is None else [(of, frozenset(needed.extras))]
    return found


def run_with(
    site: Path, extras: str, program: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a program where only the wheel with these extras seems to be installed."""
    names = ",".join(closure(site, *extras.split()))
    return subprocess.run(
        [sys.executable, "-c", ONLY + program, names, *arguments],
        cwd=site,
        env={"PYTHONPATH": str(site), "HOME": str(site), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_training_container_gets_the_few_packages_of_the_agent(site: Path) -> None:
    heavy = {"fastapi", "sqlalchemy", "scipy", "typer", "rich", "torch", "uvicorn", "scikit-learn"}
    assert closure(site) & heavy == set()
    assert len(closure(site)) <= 15


SUPERVISED = """
import worker_agent, worker_agent.supervisor.supervisor, worker_agent.training.elastic
import scavenger.client.client, scavenger.protocol
from worker_agent.__main__ import main
sys.argv[1:] = ["run", "--", sys.executable, "-c", "print('trained')"]
main()
"""


def test_the_agent_runs_a_command_with_the_packages_of_no_extra(site: Path) -> None:
    ended = run_with(site, "", SUPERVISED)
    assert (ended.returncode, ended.stdout) == (0, "trained\n"), ended.stderr


@pytest.mark.parametrize("command", [["list"], ["agent", "sync", "."]])
def test_a_command_without_its_extra_says_in_one_line_what_to_install(
    site: Path, command: list[str]
) -> None:
    program = "sys.argv[0] = 'scavenger'\n"
    if command[0] == "agent":
        program += "sys.argv.pop(1); from worker_agent.__main__ import main; main()"
    else:
        program += "from scavenger.cli import main; main()"
    ended = run_with(site, "", program, *command)
    assert ended.returncode == 1
    assert ended.stderr.endswith("is not installed: pip install 'scavenger[cli]'\n")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("extra", "modules"), [("cli", "scavenger"), ("controller", "scavenger service migrations")]
)
def test_an_extra_brings_all_that_its_modules_import(site: Path, extra: str, modules: str) -> None:
    # The SDKs of clouds come with the extras of these clouds.
    program = """
import importlib, pkgutil
sdk = "aws aws_store google google_compute google_rights google_store"
own = ("migrations.env", *(f"service.clouds.{name}" for name in sdk.split()))
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if ".versions." not in module.name and module.name not in own:
            importlib.import_module(module.name)
"""
    ended = run_with(site, extra, program, *modules.split())
    assert ended.returncode == 0, ended.stderr


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
from service.api.routes import reference
print(json.dumps({"at": reference.__file__, "pages": len(reference.pages())}))
"""


def test_the_pages_about_problems_are_in_the_wheel(site: Path) -> None:
    found = json.loads(run(site, PROBLEMS))
    assert Path(found["at"]).is_relative_to(site)
    assert found["pages"] == len(PROBLEM_TYPES)
    assert (site / "scavenger/docs/problems.md").is_file()


def test_the_wheel_holds_the_bundle_of_the_dashboard_and_none_of_its_sources(site: Path) -> None:
    dashboard = site / "service" / "dashboard"
    assert [file.name for file in dashboard.iterdir()] == ["static"]
    page = (dashboard / "static" / "index.html").read_text()
    named = re.findall(r'(?:src|href)="/(assets/[^"]+)"', page)
    assert any(name.endswith(".js") for name in named)
    assert [name for name in named if not (dashboard / "static" / name).is_file()] == []
    # An inline script or style would be refused by the content policy of the page.
    assert re.findall(r"<script(?![^>]*src=)|<style| style=", page) == []


def test_the_bundle_is_small_and_its_page_loads_nothing_from_elsewhere(site: Path) -> None:
    static = site / "service" / "dashboard" / "static"
    page = (static / "index.html").read_text()
    first = sum(packed(static / name) for name in re.findall(r'"/(assets/[^"]+)"', page))
    everything = sum(packed(file) for file in (static / "assets").iterdir())
    assert first <= 250 * 1024
    assert everything <= 330 * 1024
    assert re.findall(r'(?:src|href)="(?:https?:)?//', page) == []


def packed(file: Path) -> int:
    """Bytes of a file as it is sent."""
    return len(gzip.compress(file.read_bytes()))


def test_the_lock_of_the_dashboard_names_no_registry() -> None:
    lock = json.loads((ROOT / "service/dashboard/package-lock.json").read_text())
    packages = [package for name, package in lock["packages"].items() if name]
    assert [package for package in packages if "resolved" in package] == []
    assert all(package["integrity"].startswith("sha512-") for package in packages)
