"""Emulators: a fake cloud behind the API of a real one, and the provider that calls that API.

The same suites run with the fake cloud's own provider and with those that a controller ships.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from decimal import ROUND_UP, Decimal
from typing import Any, Protocol

import httpx

from scavenger.schemas.prices import PriceView
from service.clouds.provider import Provider
from service.prices import HOURS_PER_MONTH, PUBLIC_ADDRESS, PriceBook, PricedRegion, newest_prices
from tests.builders import NOW
from tests.fakecloud.bill import Tariff
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.provider import FakeCloudProvider
from tests.fakecloud.refusal import ConnectionLost
from tests.fakecloud.server import answer, doors_of
from tests.fakecloud.settings import Settings

MACHINE_TYPE = "small"


@dataclass(slots=True)
class Tap:
    """What a suite does around each request of a provider.

    Attributes:
        before: Called on the caller's thread, with whether the request may begin or end a machine.
        after: Called on the caller's thread, also where no answer came.
        during: Entered while the cloud answers.
        wait: Lets seconds pass for a provider that waits.
        stopwatch: Returns the seconds that passed.
    """

    before: Callable[[bool], object] = lambda _: None
    after: Callable[[], object] = lambda: None
    during: Callable[[], AbstractContextManager[None]] = nullcontext
    wait: Callable[[float], object] = lambda _: None
    stopwatch: Callable[[], float] = lambda: 0.0


@dataclass(frozen=True, slots=True)
class CloudHabits:
    """In what one cloud differs from the others, where suites must know it.

    Attributes:
        region: What the names of its zones begin with.
        prefix: What stands before a launch key in the token that the cloud knows.
        first_number: What is added to the number of a machine in the id that the cloud shows; None
            where the fake cloud's own id is shown.
        prices: Of a machine's disk and public address.
        disk_per_hour: Dollars of a machine's disk, which a stopped machine keeps.
        address_per_hour: Dollars of its public address.
        manners: Fields of the settings of the fake cloud.
    """

    region: str = ""
    prefix: str = ""
    first_number: int | None = None
    prices: tuple[PriceView, ...] = ()
    disk_per_hour: Decimal = Decimal(0)
    address_per_hour: Decimal = Decimal(0)
    manners: Mapping[str, Any] = field(default_factory=dict)

    @property
    def beside(self) -> Decimal:
        """Dollars per hour of what is billed beside a machine."""
        return self.disk_per_hour + self.address_per_hour

    def zone(self, letter: str) -> str:
        """Return the name of a zone."""
        return self.region + letter

    def token(self, launch_key: str) -> str:
        """Return the token by which the cloud knows a launch."""
        return self.prefix + launch_key

    def launch_key(self, token: str) -> str:
        """Return the launch key that a token stands for."""
        return token.removeprefix(self.prefix)

    def provider_id(self, machine: str) -> str:
        """Return how the cloud's provider calls a machine of the fake cloud."""
        if self.first_number is None:
            return machine
        return str(self.first_number + int(machine.removeprefix("i-"), 16))

    def price_book(self, price_per_hour: Decimal) -> PriceBook:
        """Return prices by which a machine with all beside it has this price."""
        disk = self.prices[0]
        machine = {"item": MACHINE_TYPE, "unit": "machine_hour"}
        row = disk.model_copy(update={**machine, "price": price_per_hour - self.beside})
        return PriceBook(newest_prices((*self.prices, row)))

    def settings(
        self, price_per_hour: Decimal, *, quantum: float = 0.0, minimum: float = 0.0, **manners: Any
    ) -> Settings:
        """Return how the fake cloud behaves where a machine with all beside it has this price."""
        tariff = Tariff(
            float(price_per_hour - self.beside),
            quantum,
            minimum,
            float(self.disk_per_hour),
            float(self.address_per_hour),
        )
        return Settings(**{"tariffs": {MACHINE_TYPE: tariff}, **self.manners, **manners})


def rented_habits(where: PricedRegion, disk: str, address: str, **facts: Any) -> CloudHabits:
    """Return the habits of a cloud that bills disk and address beside a machine.

    Args:
        where: Its region.
        disk: Dollars per GiB and month.
        address: Dollars per hour.
        facts: The other habits.
    """
    prices = tuple(
        PriceView(
            provider=where.provider,
            region=where.region,
            item=item,
            unit=unit,
            market="on_demand",
            price=Decimal(price),
            as_of=NOW,
            source="imported",
        )
        for item, unit, price in (
            (where.disk, "disk_gib_month", disk),
            (PUBLIC_ADDRESS, "address_hour", address),
        )
    )
    # As the controller rounds it, but by no code of the controller.
    monthly = Decimal(disk) * where.disk_gib
    hourly = (monthly / HOURS_PER_MONTH).quantize(Decimal("1e-8"), ROUND_UP)
    return CloudHabits(
        prices=prices, disk_per_hour=hourly, address_per_hour=Decimal(address), **facts
    )


class Emulator(Protocol):
    """Plays one cloud after the other, and opens providers of the one that it plays now.

    Attributes:
        habits: Those of the real cloud.
        tap: What is done around each request.
    """

    habits: CloudHabits
    tap: Tap

    def play(self, cloud: FakeCloud) -> None:
        """Answer for another cloud from now on."""

    def open(self) -> Provider:
        """Return a new provider, as a controller that starts does."""

    def disconnect(self) -> None:
        """Close connections, which a fork must not share."""

    def memory(self) -> object:
        """Return what the cloud's API remembers besides its machines."""


class PlainTransport(httpx.BaseTransport):
    """Carries requests to a fake cloud in the same process."""

    def __init__(self, cloud: FakeCloud, tap: Tap) -> None:
        self._doors, self._tap = doors_of(cloud), tap

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path, content = request.url.path, request.read()
        self._tap.before(path != "/cloud/list")
        try:
            with self._tap.during():
                status, kind, told = answer(self._doors, path, content)
        except ConnectionLost as error:
            raise httpx.ReadError("reset") from error
        finally:
            self._tap.after()
        return httpx.Response(status, headers={"Content-Type": kind}, content=told)


class PlainEmulator:
    """The fake cloud as it is, in the same process.

    Args:
        traits: Of its provider.
    """

    habits = CloudHabits(manners={"has_zonal_tokens": True})

    def __init__(self, **traits: Any) -> None:
        self.tap = Tap()
        self._traits = traits

    def play(self, cloud: FakeCloud) -> None:
        self._cloud = cloud

    def open(self) -> Provider:
        transport = PlainTransport(self._cloud, self.tap)
        return FakeCloudProvider("http://cloud", "ours", transport=transport, **self._traits)

    def disconnect(self) -> None:
        pass

    def memory(self) -> object:
        return None


CLOUD_NAMES = ("fake", "aws", "google")


@contextmanager
def open_emulator(name: str, **options: Any) -> Iterator[Emulator | None]:
    """Open the emulator of a cloud, none for the fake cloud itself.

    An SDK is imported only where it is used.
    """
    match name:
        case "fake":
            yield None
        case "aws":
            from tests.fakecloud.aws_emulator import AwsEmulator

            with AwsEmulator(**options) as aws:
                yield aws
        case "google":
            from tests.fakecloud.google_emulator import GoogleEmulator

            with GoogleEmulator(**options) as google:
                yield google
        case _:
            raise ValueError(f"a cloud is one of {', '.join(CLOUD_NAMES)}, got {name}")
