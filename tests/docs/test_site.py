"""The documentation as a site: built strictly, each link checked, nothing loaded from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.build import build, faults, navigation
from service.api.problems import PROBLEM_TYPES, problem_uri
from tests.docs.test_docs import DOCS


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("docs") / "site"
    assert build(directory) == []
    return directory


@pytest.mark.parametrize("code", PROBLEM_TYPES)
def test_a_problem_has_a_page_at_the_path_of_its_type(code: str, site: Path) -> None:
    page = (site / problem_uri(code).lstrip("/") / "index.html").read_text()
    assert re.search(rf"<h1[^>]*>{code}", page)
    assert "<strong>What to do.</strong>" in page
    overview = (site / "problems" / "index.html").read_text()
    assert f'href="./{problem_uri(code).rpartition("/")[2]}/"' in overview


def test_each_page_of_the_documentation_is_a_page_of_the_site(site: Path) -> None:
    pages = {page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md")}
    there = {page.parent.relative_to(site) for page in site.rglob("index.html")}
    homes = {page.parent if page.name in ("index", "README") else page for page in pages}
    assert homes - there == set()


def test_the_navigation_is_by_task_and_holds_what_the_index_lists() -> None:
    tasks = [title for entry in navigation((DOCS / "index.md").read_text()) for title in entry]
    assert tasks == [
        "Overview",
        "Start",
        "How to",
        "Extend",
        "Explanation",
        "Reference",
        "Decisions",
    ]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="other/">other</a>', None),
        ('<a href="other/#part">its part</a>', None),
        ('<a href="#here"><b id="here"></b>', None),
        ('<a href="/other/index.html">from the top</a>', None),
        ('<a href="https://example.org">a reader may follow this</a>', None),
        ('<a href="missing/">other</a>', "links to missing/"),
        ('<a href="other/#missing">its part</a>', "links to other/#missing"),
        ('<img src="picture.png">', "links to picture.png"),
        ('<script src="https://example.org/a.js"></script>', "loads https://example.org/a.js"),
        ('<link rel="preconnect" href="//example.org">', "loads //example.org"),
    ],
)
def test_what_a_page_refers_to_is_checked(body: str, fault: str | None, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(body)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text('<h2 id="part">part</h2>')
    found = list(faults(tmp_path))
    assert [fault is not None and fault in each for each in found] == [True] * (fault is not None)


def test_a_font_that_a_style_loads_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text(
        "@font-face { src: url(https://example.org/f.woff2) } b { src: url(f.woff2) }"
    )
    assert [each.split(": ")[0] for each in faults(tmp_path)] == [
        "a.css loads https://example.org/f.woff2"
    ]
