"""Webhooks can ask for every kind of event that the controller records, and for no other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.webhooks import NOTABLE_EVENTS, EventKind

SERVICE = Path(__file__).parents[2] / "service"
# Recorded by the phase that a job ends in, whose word is no literal.
FINAL = {phase.value for phase in JobPhase if phase.is_final}


def recorded() -> Iterator[str]:
    """Yield the kind in every call that records an event."""
    for file in SERVICE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("record_event"):
                kind = node.args[3]
                if isinstance(kind, ast.Constant):
                    yield str(kind.value)


def test_webhooks_know_every_kind_of_event() -> None:
    known = {kind.value for kind in EventKind} - {EventKind.EVERY}
    missing = (set(recorded()) | FINAL) - known
    assert not missing, f"add {missing} to scavenger.schemas.webhooks.EventKind"
    assert known == set(recorded()) | FINAL, "the controller records no event of this kind"
    assert set(NOTABLE_EVENTS) <= set(EventKind)
