"""The reference of the commands is as the commands are."""

from __future__ import annotations

from tests.docs.command_reference import PAGE, SCHEMAS, page, schemas
from tests.integration.every_command import LINES

MEND = "write it anew: python -m tests.docs.command_reference"


def test_the_page_says_what_the_commands_say() -> None:
    assert PAGE.read_text() == page(), MEND


def test_the_schemas_are_those_of_the_outputs() -> None:
    assert SCHEMAS.read_text() == schemas(), MEND


def test_every_command_has_a_section() -> None:
    text = PAGE.read_text()
    assert not {name for name in LINES if f"\n### {name}\n" not in text}
