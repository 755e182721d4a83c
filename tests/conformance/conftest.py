"""What the conformance tests of clouds launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

import pytest

from service.clouds.provider import LaunchRequest
from tests.builders import boot, offer
from tests.conformance.clouds import Eventually, Request, UsualLaunch, advancing
from tests.controller_double import BOOTSTRAP, ControllerDouble
from tests.fakecloud.ec2_door import AwsDoor
from tests.fakecloud.google_door import GoogleDoor

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
def usual_launch() -> UsualLaunch:
    """What launches have in common; each cloud has its own."""
    return UsualLaunch()


@pytest.fixture
def request_for(controller: ControllerDouble, usual_launch: UsualLaunch) -> Request:
    def make(
        *command: str,
        key: str = "key-1",
        prepaid: float = usual_launch.prepaid,
        labels: Mapping[str, str] = usual_launch.labels,
        max_run_seconds: float = inf,
        **place: Any,
    ) -> LaunchRequest:
        controller.assign(command=command or FOREVER)
        told = {"controller": controller.url, "token": BOOTSTRAP, "worker": key}
        return LaunchRequest(
            launch_key=key,
            offer=offer("0.5", **{**usual_launch.offer, **place}),
            boot=boot(**told, prepaid=prepaid, agent="a" * 64),
            labels=labels,
            max_run_seconds=max_run_seconds,
        )

    return make


@pytest.fixture
def eventually(door: AwsDoor | GoogleDoor) -> Eventually:
    return advancing(door.cloud)
