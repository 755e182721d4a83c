"""How long a command line takes to list all offers of a controller with several clouds.

Prints the seconds of a whole list, page by page over HTTP, and of one filtered page; each is
measured in the client, so parsing counts. Fails when the whole list takes longer than a second. Run
by ``make bench-offers``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import uvicorn
from sqlalchemy import Engine, create_engine

from scavenger.client.client import Client
from scavenger.schemas.prices import PriceRow
from service.api.dependencies import AppState
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.clouds.clouds import Clouds
from service.clouds.local import LocalProvider
from service.clouds.provider import CloudTraits
from service.clouds.storage import CheckpointStorage
from service.db import clock, prices
from service.db.database import migrate
from service.postgres.server import EmbeddedPostgres
from service.prices import PricedRegion, to_price

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)
REGIONS, ZONES, MARKETS, ROUNDS, LONGEST = 4, 3, 2, 9, 1.0


class BenchedProvider(LocalProvider):
    """A region with zones, which is never asked for a machine."""

    def __init__(self, number: int) -> None:
        super().__init__(Path("/nowhere"), sys.executable, name=f"cloud-{number}")
        self.traits = CloudTraits(
            zones=tuple(f"region-{number}{letter}" for letter in "abc"[:ZONES]),
            priced=PricedRegion("aws", f"region-{number}"),
        )


def main() -> int:
    """Print what was measured; 1 if the limit was missed."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--offers", type=int, default=5000)
    wanted: int = reader.parse_args().offers
    types = -(-wanted // (REGIONS * ZONES * MARKETS))
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        with EmbeddedPostgres(Path(name) / "postgres") as postgres:
            engine = create_engine(postgres.url())
            migrate(engine)
            fill(engine, types)
            with serving(engine) as url, Client(url, KEYS.home_token) as client:
                verdict = bench(client, types * REGIONS * ZONES * MARKETS)
            engine.dispose()
    return verdict


def fill(engine: Engine, types: int) -> None:
    """Store a price on demand for every type in each region, and one on spot for half of them."""
    with engine.begin() as connection:
        now = clock.read(connection)
        rows = [
            PriceRow(
                provider="aws",
                region=f"region-{region}",
                item=f"m{number}.large",
                market=market,
                price=Decimal(number + 1) / (100 if market == "on_demand" else 300),
                vcpus=2 + number % 64,
                memory_gib=8,
            )
            for region in range(REGIONS)
            for number in range(types)
            for market in (("on_demand", "spot") if number % 2 else ("on_demand",))
        ]
        prices.store_prices(connection, [to_price(row, "imported", now) for row in rows], now)


@contextmanager
def serving(engine: Engine) -> Iterator[str]:
    """Serve until the end of a block; returns the URL."""
    clouds = Clouds(BenchedProvider(number) for number in range(REGIONS))
    app = build_app(AppState(engine, clouds, CheckpointStorage(Path("/srv"))), KEYS)
    config = uvicorn.Config(app, port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def bench(client: Client, offers: int) -> int:
    """Print the time of a whole list and of a page; 1 if the list took too long."""

    def list_all() -> None:
        assert len(client.list_offers(2 * offers, {}).offers) == offers

    def list_some() -> None:
        client.list_offers(20, {"vcpus": 32, "market": "spot"})

    whole, page = taken(list_all), taken(list_some)
    verdict = "ok" if whole <= LONGEST else "MISSED"
    print(
        f"{offers:,} offers {whole:.2f} s of {LONGEST:.0f} s {verdict}, or {offers / whole:,.0f}/s"
    )
    print(f"20 of them by a filter {1e3 * page:.0f} ms, {whole / page:.0f} times less")
    return 0 if verdict == "ok" else 1


def taken(work: Callable[[], None]) -> float:
    """Return the median seconds of several rounds, after one that warms up."""
    work()
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


if __name__ == "__main__":
    sys.exit(main())
