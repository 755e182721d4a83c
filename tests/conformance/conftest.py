"""What the conformance tests of clouds launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from service.clouds.provider import LaunchRequest
from tests.builders import boot, offer
from tests.controller_double import BOOTSTRAP, ControllerDouble

FOREVER = ("sleep", "600")


@pytest.fixture(scope="module")
def aws_environment() -> Iterator[None]:
    """Let the SDK find credentials in the environment, and nothing of this computer's."""
    with pytest.MonkeyPatch.context() as environment:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
            environment.delenv(name, raising=False)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            environment.setenv(name, "/dev/null")
        environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
        environment.setenv("AWS_ACCESS_KEY_ID", "id")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        environment.setenv("NO_PROXY", "127.0.0.1")
        yield


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
