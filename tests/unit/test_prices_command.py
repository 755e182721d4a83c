"""``scavenger prices`` against a fake controller that keeps the REST contract."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx

from scavenger.errors import ExitCode
from scavenger.schemas.prices import PriceImportView, PriceList, PriceView
from tests.unit.test_cli_commands import run


def price(item: str, age: timedelta) -> PriceView:
    return PriceView(
        provider="aws",
        region="eu-central-1",
        item=item,
        unit="machine_hour",
        market="on_demand",
        price=Decimal("0.20160"),
        as_of=datetime.now(UTC) - age,
        source="imported",
    )


class PriceKeeper:
    """Answers as the controller does."""

    def __init__(self, *prices: PriceView, refused: tuple[str, ...] = ()) -> None:
        self.prices, self.refused = prices, refused
        self.imported: list[Any] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/prices"
        if request.method == "GET":
            return httpx.Response(200, text=PriceList(prices=list(self.prices)).model_dump_json())
        rows = json.loads(request.content)["prices"]
        self.imported.append(rows)
        answer = PriceImportView(accepted=len(rows), refused=list(self.refused))
        return httpx.Response(200, text=answer.model_dump_json())


def test_prices_are_shown_with_their_age_and_old_ones_are_marked() -> None:
    keeper = PriceKeeper(
        price("m7i.large", timedelta(days=30)), price("m7i.xlarge", timedelta(days=31, hours=1))
    )
    code, data, _ = run(keeper, "prices")
    assert code == 0
    new, old = (line for line in data.splitlines() if "m7i" in line)
    assert "0.2016" in new
    assert "imported" in new
    assert "▲ 31 d" in old
    code, data, _ = run(keeper, "prices", "-o", "json")
    assert code == 0
    assert PriceList.model_validate_json(data).prices == list(keeper.prices)


def test_where_no_price_is_known_the_next_command_is_named() -> None:
    code, data, stderr = run(PriceKeeper(), "prices")
    assert (code, data) == (0, "")
    assert "scavenger prices import FILE" in stderr


def test_a_table_is_sent_in_parts_and_what_is_not_believed_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    rows = "".join(f"aws,eu-central-1,m{n}.large,0.1\n" for n in range(2500))
    file.write_text(f"provider,region,item,price\n{rows}")
    keeper = PriceKeeper()
    code, data, _ = run(keeper, "prices", "import", str(file))
    assert (code, data) == (0, "2500 prices imported of 2500\n")
    assert [len(part) for part in keeper.imported] == [1000, 1000, 500]
    keeper = PriceKeeper(refused=("m1.large: zero is no price",))
    code, _, stderr = run(keeper, "prices", "import", str(file))
    assert code == ExitCode.OTHER
    assert "not believed: m1.large: zero is no price" in stderr


def test_a_file_that_cannot_be_used_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    keeper = PriceKeeper()
    for text, words in (
        ("provider,region,item,price\naws,r,x,y\n", ":2:9:"),
        ("", "write a header"),
    ):
        file.write_text(text)
        code, _, stderr = run(keeper, "prices", "import", str(file))
        assert code == ExitCode.USAGE
        assert words in stderr
    code, _, stderr = run(keeper, "prices", "import", str(tmp_path / "none.csv"))
    assert code == ExitCode.USAGE
    assert keeper.imported == []
