"""The walk and the map name functions, files and folders that are there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.docs.test_docs import DOCS, PACKAGES, ROOT, resolves

WALK = (DOCS / "walk.md").read_text()
STEP = re.compile(r"^(\d+)\. (.*?)(?=^\d+\. |^\n|\Z)", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r"((?:`[\w.]+`(?: and )?)+)\s+\(`([\w/]+\.py)`\)")
ROW = re.compile(r"^\| `([\w/]+)/` \| (.+) \|$", re.MULTILINE)


def walks() -> list[tuple[str, list[str]]]:
    """Return the numbered steps of each walk, by its heading."""
    parts = re.split(r"^## (.*)\n", WALK, flags=re.MULTILINE)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [(title, [text for _, text in STEP.findall(body)]) for title, body in pairs]


@pytest.mark.parametrize(("title", "steps"), walks())
def test_a_walk_has_at_most_twelve_steps_of_one_sentence_with_a_function_each(
    title: str, steps: list[str]
) -> None:
    assert 3 <= len(steps) <= 12, title
    for step in steps:
        assert PLACE.match(step), step
        assert len(re.findall(r"[.!?](?=\s)", step + " ")) == 1, step


def places() -> list[tuple[str, str]]:
    found = [(name, file) for names, file in PLACE.findall(WALK) for name in names.split("`")[1::2]]
    return sorted(set(found))


@pytest.mark.parametrize(("name", "file"), places())
def test_a_function_of_the_walk_is_in_its_file(name: str, file: str) -> None:
    module = file.removesuffix(".py").replace("/", ".")
    assert resolves(f"{module}.{name}"), f"{name} is not in {file}"


def folders() -> list[str]:
    found = (each for name in PACKAGES for each in (ROOT / name).rglob("*") if each.is_dir())
    own = [each for each in (*found, *map(ROOT.joinpath, PACKAGES)) if any(each.glob("*.py"))]
    return sorted(str(each.relative_to(ROOT)) for each in own)


def test_the_map_has_a_row_for_each_folder_and_no_other() -> None:
    assert sorted(name for name, _ in rows()) == folders()


@pytest.mark.parametrize("name", folders())
def test_a_folder_is_described_in_two_sentences(name: str) -> None:
    meaning = dict(rows())[name]
    assert len(re.findall(r"\.(?= |$)", meaning)) == 2, meaning


@pytest.mark.parametrize("name", folders())
def test_a_folder_says_in_its_init_what_it_is_for(name: str) -> None:
    if not (ROOT / name / "__init__.py").exists():
        return  # a folder of files that Python imports by path
    docstring = importlib.import_module(name.replace("/", ".")).__doc__ or ""
    assert len(docstring.split()) >= 8, f"{Path(name)}/__init__.py says too little"


def rows() -> list[tuple[str, str]]:
    return ROW.findall((DOCS / "map.md").read_text())
