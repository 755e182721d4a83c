"""The page of promises names tests and make targets that are there, and all promises."""

from __future__ import annotations

import re

from tests.docs.test_docs import DOCS, ROOT

PAGE = (DOCS / "promises.md").read_text()
ROWS = dict(re.findall(r"^\| (P\d+) \| (.+) \|$", PAGE, re.MULTILINE))


def test_every_promise_has_a_row_with_something_that_tries_to_break_it() -> None:
    assert list(ROWS) == [f"P{number}" for number in range(1, 26)]
    assert [name for name, row in ROWS.items() if not re.search(r"`(make |tests/)", row)] == []


def test_what_is_named_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`make ([\w-]+)`", PAGE))
    assert [t for t in sorted(targets) if not re.search(rf"^{t}:", makefile, re.MULTILINE)] == []
    files = set(re.findall(r"`(tests/[\w./-]+)`", PAGE))
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []


def test_no_figure_is_missing() -> None:
    assert re.findall(r"\b[A-Z]{5,}\b", PAGE.replace("SIGKILL", "")) == []
