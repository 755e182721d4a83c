"""Control: what only a test may do with a fake cloud that another process serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
from pydantic import TypeAdapter
from pydantic_core import to_json

from tests.fakecloud.bill import Bill
from tests.fakecloud.cloud import Truth
from tests.fakecloud.faults import Fault, Operation

MACHINES, COUNTS = TypeAdapter(tuple[Truth, ...]), TypeAdapter(dict[str, int])
BILL, NAMES = TypeAdapter(Bill), TypeAdapter(tuple[str, ...])


class Control:
    """The same words as the cloud, its clock and its faults have, over HTTP."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=f"{url}/control/", trust_env=False, verify=False)

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def now(self) -> float:
        return float(self._post("now"))

    def advance(self, seconds: float) -> float:
        return float(self._post("advance", seconds=seconds))

    def next(
        self, operation: Operation, fault: Fault, about: str | None = None, times: int = 1
    ) -> None:
        self._post("next", operation=operation, fault=fault, about=about, times=times)

    def always(self, operation: Operation, fault: Fault, about: str | None = None) -> None:
        self._post("always", operation=operation, fault=fault, about=about)

    def sometimes(self, operation: Operation, fault: Fault, probability: float) -> None:
        self._post("sometimes", operation=operation, fault=fault, probability=probability)

    def calm(self) -> None:
        self._post("calm")

    def counts(self) -> Mapping[str, int]:
        return COUNTS.validate_json(self._post("counts"))

    def unfired(self) -> tuple[str, ...]:
        return NAMES.validate_json(self._post("unfired"))

    def machines(self) -> tuple[Truth, ...]:
        return MACHINES.validate_json(self._post("machines"))

    def bill(self, until: float | None = None) -> Bill:
        return BILL.validate_json(self._post("bill", until=until))

    def interrupt(self, machine: str, notice: float = 0.0) -> None:
        self._post("interrupt", machine=machine, notice=notice)

    def renew(self, machine: str, lease: float) -> None:
        self._post("renew", machine=machine, lease=lease)

    def stock(self, place: str, machines: int) -> None:
        self._post("stock", place=place, machines=machines)

    def power_off(self, machine: str) -> None:
        self._post("power_off", machine=machine)

    def break_zone(self, zone: str) -> None:
        self._post("break_zone", zone=zone)

    def repair_zone(self, zone: str) -> None:
        self._post("repair_zone", zone=zone)

    def _post(self, what: str, **arguments: Any) -> bytes:
        reply = self._http.post(what, content=to_json(arguments))
        if reply.is_error:
            raise ValueError(f"{what}: {reply.text}")
        return reply.content
