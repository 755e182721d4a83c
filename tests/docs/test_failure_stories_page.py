"""Every story of the page of failures is told by tests that are there."""

from __future__ import annotations

import re

import pytest

from tests.docs.test_docs import DOCS, ROOT

PAGE = (DOCS / "failure-stories.md").read_text()
ROWS = dict(re.findall(r"^\| ([FT]\d+) \| (.+) \|$", PAGE, re.MULTILINE))
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_the_stories_of_launches_ends_and_money_are_told() -> None:
    wanted = [*range(1, 19), *range(35, 38)]
    assert [name for name in ROWS if name.startswith("F")] == [f"F{number}" for number in wanted]


@pytest.mark.parametrize("story", ROWS)
def test_the_tests_of_a_story_are_there(story: str) -> None:
    named = TEST.findall(ROWS[story])
    assert named
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file} has no {test}"
    assert ROWS[story].count("tests/") == len(named), "each name is a file and a test"
