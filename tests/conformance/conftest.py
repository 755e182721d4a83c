"""What the conformance tests of clouds launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from service.clouds.provider import LaunchRequest
from tests.builders import worker_env
from tests.controller_double import TOKEN, ControllerDouble

FOREVER = ("sleep", "600")


@pytest.fixture
def controller() -> Iterator[ControllerDouble]:
    double = ControllerDouble()
    yield double
    double.close()


@pytest.fixture
def request_for(controller: ControllerDouble) -> Callable[..., LaunchRequest]:
    def make(*command: str, key: str = "key-1", prepaid: float = 60.0) -> LaunchRequest:
        return LaunchRequest(
            launch_key=key,
            worker=worker_env(
                controller=controller.url,
                token=TOKEN,
                worker=key,
                command=command or FOREVER,
                prepaid=prepaid,
            ),
            price_per_hour=0.5,
            labels={"purpose": "conformance.test", "Owner_1": "none"},
        )

    return make
