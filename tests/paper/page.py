"""The table of ``docs/reproduction.md``, between two markers so that a test can check it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.paper.evidence import Evidence
from tests.paper.statements import state_all

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reproduction.md"
PICTURES = ROOT / "docs" / "pictures" / "paper"
BEGIN, END = "<!-- written by make paper -->\n", "<!-- end of what make paper writes -->\n"
HEADER = "| Paper | Its value | Ours | Where they differ, and why |\n|---|---|---|---|\n"


def write_table(evidences: Sequence[Evidence]) -> None:
    """Replace the table of the page."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}{table(evidences)}{END}{after}")


def written_table() -> str:
    """Return the table as the page has it."""
    return PAGE.read_text().split(BEGIN)[1].split(END)[0]


def table(evidences: Sequence[Evidence]) -> str:
    """Return the table, one row per statement, and what the training behind it took."""
    rows = (
        f"| {row.where} | {row.theirs} | {row.ours} | {row.why} |\n" for row in state_all(evidences)
    )
    minutes = " / ".join(f"{evidence.runs.minutes:.0f}" for evidence in evidences)
    return f"{HEADER}{''.join(rows)}\nTraining took {minutes} minutes of one core.\n"
