"""The page about exit codes lists those that there are."""

from __future__ import annotations

import re

from scavenger.errors import ExitCode
from tests.docs.test_docs import DOCS

ROW = re.compile(r"^\| (\d+) \| (\w+) \| \S", re.MULTILINE)


def test_the_page_lists_every_exit_code() -> None:
    rows = ROW.findall((DOCS / "exit-codes.md").read_text())
    assert [(int(number), name) for number, name in rows] == [
        (code.value, code.name.lower()) for code in ExitCode
    ]
