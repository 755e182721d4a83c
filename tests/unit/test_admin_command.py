"""``scavenger admin sweep`` against a fake controller that keeps the REST contract."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from scavenger.schemas.machines import SweepList, SweepView
from tests.builders import NOW
from tests.unit.test_cli_commands import run


def suspect(number: int, fate: str, reason: str, job: str = "job_1") -> dict[str, Any]:
    names = {"machine": f"i-{number}", "launch_key": f"key-{number}", "job": job}
    return {**names, "fate": fate, "reason": reason, "since": None}


def sweep(*suspects: dict[str, Any], tripped: str | None = None) -> SweepView:
    facts = {
        "cloud": "local",
        "number": 7,
        "at": NOW,
        "shown": 5,
        "suspects": list(suspects),
        "ended": 0,
    }
    return SweepView.model_validate({**facts, "tripped": tripped, "confirmed_at": None})


@dataclass
class Sweeps:
    """Answers as the controller does."""

    newest: SweepView | None
    confirmed: list[Any] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/sweeps"
        found = [] if self.newest is None else [self.newest]
        if request.method == "GET":
            return httpx.Response(200, text=SweepList(sweeps=found).model_dump_json())
        self.confirmed.append(json.loads(request.content))
        confirmed = found[0].model_copy(update={"confirmed_at": NOW})
        return httpx.Response(202, text=confirmed.model_dump_json())


HELD = sweep(
    suspect(1, "hold", "the database does not know it"),
    suspect(2, "spare", "it carries no label of ours", job=""),
    tripped="4 of 5 machines would be ended",
)


def test_a_look_shows_who_would_be_ended_or_spared_and_changes_nothing() -> None:
    for arguments in ([], ["--dry-run"]):
        controller = Sweeps(HELD)
        code, data, stderr = run(controller, "admin", "sweep", *arguments)
        assert code == 0
        for word in ("i-1", "key-1", "job_1", "▲ held back", "the database does not know it"):
            assert word in data
        assert "○ spared" in data
        assert "Held back: 4 of 5 machines would be ended" in data
        assert "scavenger admin sweep --confirm" in stderr
        assert controller.confirmed == []


def test_confirming_names_the_sweep_that_was_shown() -> None:
    controller = Sweeps(HELD)
    code, data, stderr = run(controller, "admin", "sweep", "--confirm")
    assert code == 0
    assert controller.confirmed == [{"confirm": True, "sweep": 7}]
    assert "Confirmed at 2026-01-01 12:00:00 UTC" in data
    assert "1 machine will be terminated by the next sweeps" in stderr


def test_json_is_the_view_as_it_came() -> None:
    code, data, _ = run(Sweeps(HELD), "admin", "sweep", "-o", "json")
    assert code == 0
    assert SweepList.model_validate_json(data).sweeps == [HELD]
    code, data, _ = run(Sweeps(None), "admin", "sweep", "-o", "json")
    assert SweepList.model_validate_json(data).sweeps == []


def test_there_may_be_nothing_to_tell() -> None:
    code, data, stderr = run(Sweeps(None), "admin", "sweep")
    assert (code, data) == (0, "")
    assert "No sweep yet" in stderr
    code, data, stderr = run(Sweeps(sweep()), "admin", "sweep")
    assert code == 0
    assert "5 machines of ours, 0 ended" in data
    assert "No orphaned machines." in data
    assert stderr == ""


def test_wrong_use_gets_a_sentence() -> None:
    for newest in (None, sweep(), HELD.model_copy(update={"confirmed_at": NOW})):
        controller = Sweeps(newest)
        code, _, stderr = run(controller, "admin", "sweep", "--confirm")
        assert code == 6
        assert "Nothing is held back, so there is nothing to confirm" in stderr
        assert controller.confirmed == []
    code, _, stderr = run(Sweeps(HELD), "admin", "sweep", "--confirm", "--dry-run")
    assert code == 2
    assert "--dry-run only looks, --confirm terminates" in stderr
