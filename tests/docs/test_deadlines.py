"""The page about deadlines shows the tables that the controller and the database go by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from service.db.schema import PHASE_TRANSITIONS, VM_TRANSITIONS
from service.reconciler import timeouts
from service.reconciler.timeouts import Timeout
from tests.docs.test_docs import DOCS

PAGE = (DOCS / "deadlines.md").read_text()


def test_the_page_shows_every_deadline() -> None:
    declared = [value for value in vars(timeouts).values() if isinstance(value, Timeout)]
    head = ("| State | At most | Who watches | What follows |", "|---|---|---|---|")
    rows = [f"| {d.waits_for} | {d.limit_text} | {d.watcher} | {d.consequence} |" for d in declared]
    table = "\n".join((*head, *rows))
    assert f"\n\n{table}\n\n" in PAGE
    assert len({row.waits_for for row in declared}) == len(declared)


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
