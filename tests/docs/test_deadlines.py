"""The page about deadlines shows the tables that the controller and the database go by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from service.db.schema import PHASE_TRANSITIONS, VM_TRANSITIONS
from service.reconciler import timeouts
from service.reconciler.timeouts import TIMEOUTS, Timeout, timeout_table
from tests.docs.test_docs import DOCS

PAGE = (DOCS / "deadlines.md").read_text()


def test_the_page_shows_the_table_of_deadlines() -> None:
    assert f"\n\n{timeout_table()}\n" in PAGE


def test_no_deadline_is_missing_from_the_table() -> None:
    declared = {id(value) for value in vars(timeouts).values() if isinstance(value, Timeout)}
    assert {id(row) for row in TIMEOUTS} == declared
    assert len({row.state for row in TIMEOUTS}) == len(TIMEOUTS)


def test_the_page_shows_what_may_become_of_jobs_and_machines() -> None:
    for transitions in (PHASE_TRANSITIONS, VM_TRANSITIONS):
        assert f"\n| From | To |\n|---|---|\n{rows(transitions)}\n" in PAGE


def rows(transitions: Mapping[str, Iterable[str]]) -> str:
    order = [*transitions]
    return "\n".join(
        f"| {before} | {', '.join(sorted(after, key=order.index))} |"
        for before, after in transitions.items()
        if after
    )
