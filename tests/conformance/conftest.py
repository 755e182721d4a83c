"""What the conformance tests of clouds launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from service.clouds.provider import LaunchRequest
from tests.builders import boot, offer
from tests.controller_double import BOOTSTRAP, ControllerDouble

FOREVER = ("sleep", "600")


@pytest.fixture
def controller() -> Iterator[ControllerDouble]:
    double = ControllerDouble()
    yield double
    double.close()


@pytest.fixture
def request_for(controller: ControllerDouble) -> Callable[..., LaunchRequest]:
    def make(
        *command: str,
        key: str = "key-1",
        prepaid: float = 60.0,
        zone: str = "a",
        machine_type: str = "small",
    ) -> LaunchRequest:
        controller.assign(command=command or FOREVER)
        return LaunchRequest(
            launch_key=key,
            offer=offer("0.5", zone=zone, machine_type=machine_type),
            boot=boot(controller=controller.url, token=BOOTSTRAP, worker=key, prepaid=prepaid),
            labels={"purpose": "conformance_test", "owner-1": "none"},
        )

    return make
