"""Each word of the catalog has a section on the page about problems, and is said somewhere."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

import pytest

from scavenger.view import ProblemView
from service.api.refusal import BY_STATUS, CATALOG, RETRY_AFTER, refuse, type_of
from tests.docs.test_docs import DOCS, ROOT

PAGE = DOCS / "problems.md"
SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SAYING = ("Refusal", "refuse", "refuses")
OWN = ("refusal.py", "description.py")


def sections() -> dict[str, str]:
    return dict(SECTION.findall(PAGE.read_text()))


def test_the_page_tells_about_each_word_and_no_other() -> None:
    assert list(sections()) == list(CATALOG), "docs/problems.md has a section for each, in order"


@pytest.mark.parametrize("code", CATALOG)
def test_a_section_says_what_it_means_what_to_do_and_shows_one(code: str) -> None:
    status, title = CATALOG[code]
    text = sections()[code]
    assert text.startswith(f"\n{status}: {title}.\n\n")
    meaning, _, remedy = text.partition("**What to do.** ")
    assert len(meaning.split()) > 8
    assert len(remedy.partition("```")[0].split()) > 3
    (example,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    shown = ProblemView.model_validate_json(example)
    assert set(json.loads(example)) <= set(ProblemView.model_fields)
    assert (shown.code, shown.status, shown.title) == (code, status, title)
    assert shown.type == type_of(code)
    assert json.loads(bytes(refuse(code, shown.detail).body))["type"] == shown.type


def said() -> Iterator[tuple[str, ast.Call]]:
    """Yield every call that says no, with the file it stands in."""
    files = {*(ROOT / "service" / "api").glob("*.py"), ROOT / "service" / "app.py"}
    for file in sorted(files - {ROOT / "service" / "api" / name for name in OWN}):
        nodes = [node for node in ast.walk(ast.parse(file.read_text())) if is_saying(node)]
        yield from ((file.name, node) for node in nodes if isinstance(node, ast.Call))


def is_saying(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Name) and called.id in SAYING


def words() -> list[tuple[str, str]]:
    return [
        (file, argument.value)
        for file, call in said()
        for argument in (call.args if call.func.id == "refuses" else call.args[:1])  # type: ignore[attr-defined]
        if isinstance(argument, ast.Constant)
    ]


def test_whoever_says_no_uses_a_word_of_the_catalog() -> None:
    literal = [call for _, call in said() if call.args and isinstance(call.args[0], ast.Constant)]
    assert len(literal) == len(list(said())), "a word that is computed cannot be checked here"
    assert [(file, word) for file, word in words() if word not in CATALOG] == []


def test_every_word_is_said() -> None:
    own = set(re.findall(r'refuse\("(\w+)"', (ROOT / "service/api/refusal.py").read_text()))
    assert {word for _, word in words()} | set(BY_STATUS.values()) | own == set(CATALOG)
    assert set(RETRY_AFTER) <= set(CATALOG)
