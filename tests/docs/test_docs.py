"""The documentation is true: its commands run, its names exist, its examples parse."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from scavenger.job.validation import parse_job
from scavenger.schemas.jobs import JobPhase
from tests.controller import Controller, supervisor_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("*/*.md")])
# How a reader's tests run: with as few examples as ours.
PYTEST = [
    *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis"),
    *("-p", "tests.conftest", "--hypothesis-profile", "repeatable"),
]
EPOCHS_OF_TEST = 15  # of the job in the quickstart
PACKAGES = ("scavenger", "service", "worker_agent")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"^`([\w.-]+)`:\n+```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
DOTTED = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"[\w./-]+\.(?:py|md|yaml|svg|toml|lock)|[\w.-]+/(?:[\w.-]+/)*|\.ci/run|Makefile")
# Written by the reader, or by a program while it runs.
NOT_OURS = {"train.py", "job.yaml"}
# A file whose content a page shows, for the reader to write.
SHOWN = re.compile(r"^`([\w./-]+)`:\n+```", re.MULTILINE)
EQUATION = re.compile(r"Eqs?\. ([^)\n]*)")
# Written in two pieces, so that this file does not contain what it forbids.
REGISTRIES = [f"{name}.{end}" for name, end in (("pypi", "org"), ("pythonhosted", "org"))]
INDEXES = [f"{name}.{end}" for name, end in (("npmjs", "org"), ("download.pytorch", "org"))]
WORKPLACE = [f"/{first}/{second}" for first, second in (("work", "main"), ("work", "shared"))]


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", page.read_text())


def blocks(page: Path, language: str) -> list[str]:
    return [code for name, code in FENCE.findall(page.read_text()) if name == language]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def workplace(open_directory: Path) -> Iterator[Path]:
    """A directory with a private controller's home beside it; nothing survives it."""
    directory = open_directory / "quickstart"
    directory.mkdir(mode=0o755)
    yield directory
    for file in (directory / "home" / "machines").glob("*.pid"):
        for process in supervisor_of(file):
            os.killpg(process.pid, signal.SIGKILL)


def test_the_quickstart_runs_as_written(workplace: Path) -> None:
    page = DOCS / "quickstart.md"
    for name, content in NAMED.findall(page.read_text()):
        (workplace / name).write_text(content)
    hold_until_chosen(workplace)
    (workplace / "steps.sh").write_text("set -eu\n" + "".join(blocks(page, "sh")))
    with ThreadPoolExecutor() as threads:
        steps = threads.submit(run, workplace, 900)
        controller, held = Controller(workplace / "home"), workplace / "held"
        controller.wait(lambda: steps.done() or has_chosen(workplace))
        held.unlink()
        # The second job, which needs no search, must not end before it is told to resize.
        controller.wait(lambda: steps.done() or has_finished(workplace))
        held.touch()
        controller.wait(lambda: steps.done() or has_ordered(workplace))
        held.unlink()
        said = steps.result()
    alone = re.findall(r"^error (0\.\d+)$", said, re.MULTILINE)
    assert len(alone) == 2, "before and after three lines were changed"
    assert re.search(r"^Plan plan_\w+ ", said, re.MULTILINE), said
    assert "probe 3 settled" in said, said
    assert re.search(r"● measured.*(?:\n.*)*✔ chosen", said), said
    assert re.search(r"^http://127\.0\.0\.1:\d+/jobs/\w+#code=\w+", said, re.MULTILINE), said
    assert re.search(r"^surface/network +1 ", said, re.MULTILINE), said
    assert "no search: model of 1 earlier job" in said, said
    assert re.search(r"^ *1 +done +resize to K=1 B=32", said, re.MULTILINE), said
    assert re.search(r"resize +.*K=1 B=32", said), said
    assert said.count(f"✔ target {EPOCHS_OF_TEST} epochs at batch 32 reached") == 2, said


def hold_until_chosen(workplace: Path) -> None:
    """Slow the script down while a file is there, and give the job fewer epochs than the page.

    A search lasts some hundred iterations and the start of a machine. Slowed down, the job lasts
    minutes: the search ends first, on a busy computer, too.
    """
    held, script, job = (workplace / name for name in ("held", "train.py", "job.yaml"))
    held.touch()
    line = "        loss.backward()\n"
    pace = f"        time.sleep(0.001 * len(places) * IS_JOB * os.path.exists({str(held)!r}))\n"
    text = script.read_text().replace(line, pace + line)
    is_job = 'IS_JOB = "SCAVENGER_JOB" in os.environ\n\n'
    script.write_text("import os\nimport time\n\n" + is_job + text)
    job.write_text(job.read_text().replace("epochs: 45", f"epochs: {EPOCHS_OF_TEST}"))


def has_chosen(workplace: Path) -> bool:
    """Whether the search of the job that runs has ended in a choice."""
    return any_job(workplace, lambda _, job: job["phase"] in ("training", "succeeded"))


def has_finished(workplace: Path) -> bool:
    """Whether a job has come to its end."""
    return any_job(workplace, lambda _, job: JobPhase(job["phase"]).is_final)


def has_ordered(workplace: Path) -> bool:
    """Whether a job was told to do something."""
    return any_job(
        workplace, lambda to, job: to.ask("GET", f"/v1/jobs/{job['id']}/orders").json()["orders"]
    )


def any_job(workplace: Path, is_true: Callable[[Controller, dict[str, Any]], object]) -> bool:
    controller = Controller(workplace / "home")
    with suppress(OSError, ValueError, httpx.HTTPError):  # it has not started
        jobs = controller.ask("GET", "/v1/jobs").json()["jobs"]
        return any(is_true(controller, job) for job in jobs)
    return False


def test_the_page_on_measurements_runs_as_written(tmp_path: Path) -> None:
    page = DOCS / "measurements.md"
    for name, content in NAMED.findall(page.read_text()):
        (tmp_path / name).write_text(content)
    (tmp_path / "steps.sh").write_text("set -eu\n" + "".join(blocks(page, "sh")))
    said = run(tmp_path, 300)
    assert "tagger: 12 configurations, all-reduce" in said, said
    assert "✔ chosen" in said, said
    assert "Means over tables" in said, said
    assert json.loads((tmp_path / "fit.json").read_text())["version"] == 1
    assert (tmp_path / "curve.svg").stat().st_size > 1000


def run(workplace: Path, patience: float) -> str:
    """Run the steps as one shell, and end everything they started."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
        "HOME": str(workplace),
        "SCAVENGER_HOME": str(workplace / "home"),
        "SCAVENGER_PORT": "0",
        "COLUMNS": "120",
        "LC_ALL": "C.UTF-8",
    }
    with subprocess.Popen(
        ["bash", "steps.sh"],
        cwd=workplace,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as shell:
        try:
            said = shell.communicate(timeout=patience)[0].decode()
        finally:
            # The controller stops its own database when it is asked to end.
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)
    assert shell.returncode == 0, said
    return said


def dotted_names() -> list[tuple[str, str]]:
    return [
        (named(page), name.rstrip("()"))
        for page in PAGES
        for name in sorted(set(SPAN.findall(prose(page))))
        if DOTTED.fullmatch(name.rstrip("()"))
    ]


@pytest.mark.parametrize(("page", "name"), dotted_names())
def test_a_dotted_name_resolves(page: str, name: str) -> None:
    assert resolves(name), f"{page}: {name}"


def resolves(name: str) -> bool:
    """Whether a name is a module, or something in one; fields of dataclasses count."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if part in getattr(found, "__annotations__", {}):
                return True
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("number", range(2, 11))
def test_an_equation_is_cited_by_a_docstring_and_has_a_row(number: int) -> None:
    assert number in cited_in(docstrings()), f"no docstring in scavenger/ cites Eq. {number}"
    rows = (DOCS / "equations.md").read_text()
    assert re.search(rf"^\| Eq\. {number} \|.*`scavenger\.", rows, re.MULTILINE), number


def test_equations_are_read_as_people_write_them() -> None:
    assert cited_in("(Eqs. 8-10), (Eq. 2) and Eqs. 3 and 4") == {2, 3, 4, 8, 9, 10}


def docstrings() -> str:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = []
    for file in (ROOT / "scavenger").rglob("*.py"):
        nodes = ast.walk(ast.parse(file.read_text()))
        texts += [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]
    return "\n".join(texts)


def cited_in(text: str) -> set[int]:
    numbers: set[int] = set()
    for citation in EQUATION.findall(text):
        for low, high in re.findall(r"\b(\d+)(?:-(\d+))?", citation.partition("SCIENCE")[0]):
            numbers |= set(range(int(low), int(high or low) + 1))
    return numbers


def job_documents() -> list[tuple[str, str]]:
    found = [
        (named(page), text)
        for page in PAGES
        for text in blocks(page, "yaml")
        if not text.startswith("clouds:")  # a clouds file
    ]
    files = sorted(DOCS.rglob("job*.yaml"))
    return found + [(named(file), file.read_text()) for file in files]


@pytest.mark.parametrize(("where", "document"), job_documents())
def test_a_job_document_parses(where: str, document: str) -> None:
    assert list(parse_job(document).space)


def test_there_are_job_documents_to_parse() -> None:
    pages = {where for where, _ in job_documents()}
    assert {"README.md", "docs/quickstart.md", "docs/job-spec.md"} <= pages


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_and_files_exist(page: Path) -> None:
    text = prose(page)
    links = [link.partition("#")[0] for link in LINK.findall(text) if "://" not in link]
    missing = [link for link in links if link and not (page.parent / link).exists()]
    shown = set(SHOWN.findall(page.read_text()))
    spans = {span for span in SPAN.findall(text) if FILE.fullmatch(span)} - NOT_OURS - shown
    missing += [span for span in sorted(spans) if not is_there(span, page)]
    assert missing == []


def is_there(path: str, page: Path) -> bool:
    return any((start / path).exists() for start in (ROOT, page.parent))


def glossary_words() -> list[str]:
    rows = re.findall(r"^\| (?!Word|---)([^|]+) \|", (DOCS / "glossary.md").read_text(), re.M)
    return sorted({word for row in rows for word in SPAN.findall(row)})


def test_every_code_word_of_the_glossary_occurs_in_the_code() -> None:
    code = "\n".join(f.read_text() for name in PACKAGES for f in (ROOT / name).rglob("*.py"))
    assert len(glossary_words()) > 30
    assert [w for w in glossary_words() if not re.search(rf"\b{re.escape(w)}\b", code)] == []


def test_meanings_in_the_glossary_are_short() -> None:
    rows = (DOCS / "glossary.md").read_text()
    meanings = re.findall(r"^\| (?!Word|---)[^|]+ \| ([^|]+) \|", rows, re.MULTILINE)
    assert [meaning for meaning in meanings if len(meaning.split()) > 15] == []


def test_the_first_commands_of_the_readme_are_make_targets() -> None:
    commands = "\n".join(blocks(ROOT / "README.md", "sh")).splitlines()
    first = [command.partition("#")[0].strip() for command in commands][:2]
    assert first == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{c.removeprefix('make ')}:", makefile, re.M) for c in first)
    assert re.search(r"^make test$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_commands_of_the_pages_exist() -> None:
    help_text = subprocess.run(
        [Path(sys.executable).parent / "scavenger", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    used = {
        command
        for page in PAGES
        for command in re.findall(r"\bscavenger ([a-z]+)(?=[ `\n])", "\n".join(code_of(page)))
    }
    assert {command for command in used if not re.search(rf"\b{command}\b", help_text)} == set()


def code_of(page: Path) -> list[str]:
    return [*blocks(page, "sh"), *(s for s in SPAN.findall(prose(page)) if "scavenger " in s)]


def test_no_tracked_file_names_a_registry_or_this_workplace() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True)
    tracked = {ROOT / name for name in listed.stdout.decode().splitlines()} | set(PAGES)
    found = [
        (named(file), word)
        for file in sorted(tracked)
        if file.is_file()
        for word in REGISTRIES + INDEXES + WORKPLACE
        if word.encode() in file.read_bytes()
    ]
    assert found == []


def test_the_index_lists_every_page_and_every_decision() -> None:
    index = (DOCS / "index.md").read_text()
    pages = [*DOCS.glob("*.md"), *DOCS.glob("decisions/*.md")]
    missing = [each.name for each in pages if f"({each.relative_to(DOCS)})" not in index]
    assert missing == ["index.md"]
