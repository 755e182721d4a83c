"""Each word of the catalog has a section on the page about problems, and is said somewhere."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import Engine

from scavenger.client.errors import error_classes, error_for_problem
from scavenger.schemas.problems import ProblemView
from service.api.problems import PROBLEM_TYPES, ApiProblem, problem_uri
from tests.contract.host import KEYS, host
from tests.docs.test_docs import DOCS, ROOT

PAGE = DOCS / "problems.md"
SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SAYING = ("ApiProblem", "answers_problems")
OWN = ("problems.py", "openapi.py")


def sections() -> dict[str, str]:
    return dict(SECTION.findall(PAGE.read_text()))


def test_the_page_tells_about_each_word_and_no_other() -> None:
    assert list(sections()) == list(PROBLEM_TYPES), (
        "docs/problems.md has a section for each, in order"
    )


@pytest.mark.parametrize("code", PROBLEM_TYPES)
def test_a_section_says_what_it_means_what_to_do_and_shows_one(code: str) -> None:
    status, title = PROBLEM_TYPES[code].status, PROBLEM_TYPES[code].title
    text = sections()[code]
    assert text.startswith(f"\n{status}: {title}.\n\n")
    meaning, _, remedy = text.partition("**What to do.** ")
    assert len(meaning.split()) > 8
    assert len(remedy.partition("```")[0].split()) > 3
    (example,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    shown = ProblemView.model_validate_json(example)
    assert set(json.loads(example)) <= set(ProblemView.model_fields)
    assert (shown.code, shown.status, shown.title) == (code, status, title)
    assert shown.type == problem_uri(code)
    assert json.loads(bytes(ApiProblem(code, shown.detail).response().body))["type"] == shown.type


def test_the_type_of_a_problem_is_the_address_of_its_page(engine: Engine) -> None:
    with host(engine) as controller, httpx.Client(base_url=controller.url) as client:
        mine = {"Authorization": f"Bearer {KEYS.home_token}"}
        for code, kind in PROBLEM_TYPES.items():
            page = client.get(problem_uri(code), headers=mine)
            assert page.headers["content-type"] == "text/markdown; charset=utf-8"
            assert page.text.startswith(f"# {code}\n\n{kind.status}: {kind.title}.\n\n")
            assert page.text.count("**What to do.** ") == 1
            read = client.get(problem_uri(code), headers={"Accept": "text/html,*/*;q=0.8"})
            assert read.headers["content-type"] == "text/html; charset=utf-8"
            assert f"<h1>{code}</h1>" in read.text
            assert "<script" not in read.text
        stranger = client.get("/v1/jobs")
        assert stranger.status_code == 401
        assert client.get(stranger.json()["type"]).text.startswith("# unauthenticated\n")
        refused = client.get("/v1/nowhere", headers=mine)
        there = client.get(refused.json()["type"], headers=mine)
        assert there.text.startswith("# not_found\n")
        assert client.get("/problems/none", headers=mine).status_code == 404


def test_a_page_that_is_served_alone_leads_to_no_other() -> None:
    assert [code for code, text in sections().items() if "](" in text] == []


def sentences() -> Iterator[re.Pattern[str]]:
    """Yield what the code says in so many words, anything where it fills something in."""
    for package in ("service", "scavenger"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if pattern := pattern_of(node):
                    yield re.compile(pattern)


def pattern_of(node: ast.AST) -> str | None:
    """Return the pattern of a text in the code; None for what is none, or says too little."""
    match node:
        case ast.Constant(str(text)):
            parts = [text]
        case ast.JoinedStr(values):
            parts = [v.value if isinstance(v, ast.Constant) else "" for v in values]
        case _:
            return None
    if sum(map(len, parts)) < 12:
        return None
    return "".join(re.escape(part) if part else ".+" for part in parts)


def test_the_detail_of_an_example_is_one_that_is_said() -> None:
    said = list(sentences())
    for code, text in sections().items():
        (example,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
        shown = ProblemView.model_validate_json(example)
        words = [error.message for error in shown.errors] or [shown.detail]
        assert all(any(p.fullmatch(word) for p in said) for word in words), f"{code}: {words}"


def said() -> Iterator[tuple[str, ast.Call]]:
    """Yield every call that says no, with the file it stands in."""
    files = {*(ROOT / "service" / "api").rglob("*.py"), ROOT / "service" / "app.py"}
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
        for argument in (call.args if call.func.id == "answers_problems" else call.args[:1])  # type: ignore[attr-defined]
        if isinstance(argument, ast.Constant)
    ]


def test_every_refusal_uses_a_word_of_the_catalog() -> None:
    literal = [call for _, call in said() if call.args and isinstance(call.args[0], ast.Constant)]
    assert len(literal) == len(list(said())), "a word that is computed cannot be checked here"
    assert [(file, word) for file, word in words() if word not in PROBLEM_TYPES] == []


def test_every_word_is_said() -> None:
    own = re.findall(r'ApiProblem\(\s*"(\w+)"', (ROOT / "service/api/problems.py").read_text())
    assert {word for _, word in words()} | set(own) == set(PROBLEM_TYPES)


@pytest.mark.parametrize("code", PROBLEM_TYPES)
def test_each_word_is_an_exception_of_its_own(code: str) -> None:
    kind = PROBLEM_TYPES[code]
    shown = ProblemView(type="", title=kind.title, status=kind.status, detail="", code=code)
    error = error_for_problem(shown, "/v1/jobs/job_0")
    assert error.code == code
    assert error.remedy
    of_its_status = error_for_problem(shown.model_copy(update={"code": "of_a_newer_controller"}))
    assert isinstance(error, type(of_its_status)), "an older client must see a broader class"


def test_no_exception_is_left_of_a_word_that_is_gone() -> None:
    assert set(error_classes()) == set(PROBLEM_TYPES)


def test_answers_of_one_status_advise_each_their_own() -> None:
    """All of these said "correct it" before, although nothing was there to correct."""
    codes = ("too_slow", "payload_too_large", "unsupported_media", "misdirected")
    kinds = [error_classes()[code] for code in codes]
    shown = ProblemView(type="", title="", status=400, detail="", code="")
    remedies = {kind(shown).remedy for kind in kinds}
    assert len(remedies) == len(codes)
    assert not any("correct it" in remedy for remedy in remedies)
