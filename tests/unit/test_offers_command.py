"""``scavenger offers`` and ``scavenger cost`` against a fake controller."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from scavenger.schemas.base import MoneyView
from scavenger.schemas.prices import CostEntryView, CostReportView, OfferList, OfferView
from tests.builders import NOW
from tests.unit.test_cli_commands import run


def offered(machine_type: str, **changes: Any) -> OfferView:
    facts: dict[str, Any] = {
        "cloud": "aws-frankfurt",
        "zone": "eu-central-1a",
        "machine_type": machine_type,
        "market": "spot",
        "price_per_hour": MoneyView(amount=Decimal("0.0850")),
        "is_upper_bound": False,
        "as_of": datetime.now(UTC) - timedelta(hours=2),
        "source": "cloud",
        "vcpus": 4,
        "memory_gib": 16,
        "accelerator": "",
        "accelerators": 0,
    }
    return OfferView.model_validate({**facts, **changes})


class Market:
    """Answers as the controller does, one offer a page."""

    def __init__(self, *offers: OfferView) -> None:
        self.offers = offers
        self.asked: list[dict[str, str]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/offers"
        query = dict(request.url.params)
        self.asked.append(query)
        place = int(query.get("cursor", 0))
        following = str(place + 1) if place + 1 < len(self.offers) else None
        page = OfferList(offers=list(self.offers[place : place + 1]), next_cursor=following)
        return httpx.Response(200, text=page.model_dump_json())


def test_offers_are_shown_with_price_age_and_shortage() -> None:
    market = Market(
        offered("m7i.xlarge", shortage="sold out", shortage_until=NOW),
        offered("g6.xlarge", is_upper_bound=True, accelerator="nvidia-l4", accelerators=1),
        offered("m1.old", as_of=datetime.now(UTC) - timedelta(days=99)),
    )
    code, data, stderr = run(market, "offers", "--limit", "2")
    assert code == 0
    first, second = (line for line in data.splitlines() if ".xlarge" in line)
    assert "$0.085/h" in first
    assert "2 h" in first
    assert "≤ $0.085/h" in second
    assert "scavenger offers --limit 20" in stderr
    code, data, _ = run(market, "offers")
    assert "▲ 99 d" in data
    code, data, _ = run(market, "offers", "-o", "json")
    assert OfferList.model_validate_json(data).offers == list(market.offers)


def test_needs_are_sent_as_a_filter() -> None:
    market = Market(offered("m7i.xlarge"))
    needs = "vcpus=4, memory=15.5,accelerator=nvidia-l4,accelerators=2"
    more = ["--cloud", "aws-frankfurt", "--market", "spot"]
    assert run(market, "offers", "--needs", needs, *more)[0] == 0
    assert market.asked == [
        {
            "vcpus": "4",
            "memory": "15.5",
            "accelerator": "nvidia-l4",
            "accelerators": "2",
            "cloud": "aws-frankfurt",
            "market": "spot",
            "limit": "20",
        }
    ]


@pytest.mark.parametrize("needs", ["vcpus", "cpus=4", "vcpus=", "vcpus=many", "=4", "memory=1.2.3"])
def test_needs_that_offers_do_not_have_are_refused(needs: str) -> None:
    market = Market()
    code, _, stderr = run(market, "offers", "--needs", needs)
    assert code == 2
    assert "write" in stderr
    assert market.asked == []


def test_where_nothing_is_offered_the_next_command_is_named() -> None:
    code, data, stderr = run(Market(), "offers")
    assert (code, data) == (0, "")
    assert "scavenger prices" in stderr


def test_costs_are_shown_with_their_total() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        by = request.url.params["by"]
        assert request.url.path == "/v1/cost"
        place = int(request.url.params.get("cursor", 0))
        names = {"job": ["job_2", "job_1"], "cloud": ["local"], "day": []}[by]
        entries = [
            CostEntryView(key=name, name="digits", cost=MoneyView(amount=Decimal("1.5")))
            for name in names[place : place + 1]
        ]
        report = CostReportView(
            by=by,
            until=NOW,
            total=MoneyView(amount=Decimal("1.5") * len(names)),
            entries=entries,
            next_cursor=str(place + 1) if place + 1 < len(names) else None,
        )
        return httpx.Response(200, text=report.model_dump_json())

    code, data, _ = run(answer, "cost")
    assert code == 0
    lines = data.splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["job_2", "digits", "$1.50"],
        ["job_1", "digits", "$1.50"],
    ]
    assert lines[3] == "total $3.00 until 2026-01-01 12:00:00 UTC"
    code, data, _ = run(answer, "cost", "--by", "cloud")
    assert "local" in data
    assert "NAME" not in data
    code, data, stderr = run(answer, "cost", "--by", "day")
    assert (code, data) == (0, "")
    assert "No machine has cost anything yet" in stderr
    code, data, _ = run(answer, "cost", "-o", "json")
    assert len(CostReportView.model_validate_json(data).entries) == 2
