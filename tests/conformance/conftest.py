"""What the conformance tests of clouds launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from service.clouds.provider import LaunchRequest
from tests.builders import boot
from tests.controller_double import BOOTSTRAP, ControllerDouble

FOREVER = ("sleep", "600")


@pytest.fixture
def controller() -> Iterator[ControllerDouble]:
    double = ControllerDouble()
    yield double
    double.close()


@pytest.fixture
def request_for(controller: ControllerDouble) -> Callable[..., LaunchRequest]:
    def make(*command: str, key: str = "key-1", prepaid: float = 60.0) -> LaunchRequest:
        controller.assign(command=command or FOREVER)
        return LaunchRequest(
            launch_key=key,
            boot=boot(controller=controller.url, token=BOOTSTRAP, worker=key, prepaid=prepaid),
            price_per_hour=0.5,
            labels={"purpose": "conformance.test", "Owner_1": "none"},
        )

    return make
