"""A door to EC2 and providers that call it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.clouds.aws import AwsProvider
from tests.conformance.aws.rental import USUAL, Gate, Open, entry, make_door
from tests.conformance.clouds import UsualLaunch
from tests.fakecloud.ec2_door import AwsDoor


@pytest.fixture(scope="module")
def gate(aws_environment: None) -> Iterator[Gate]:
    with Gate() as opened:
        yield opened


@pytest.fixture
def door(gate: Gate) -> AwsDoor:
    gate.door = make_door()
    return gate.door


@pytest.fixture
def reach(gate: Gate, door: AwsDoor) -> Open:
    return lambda **changes: AwsProvider("aws-frankfurt", entry(**changes), gate.clients)


@pytest.fixture
def usual_launch() -> UsualLaunch:
    return USUAL


@pytest.fixture
def aws(reach: Open) -> AwsProvider:
    return reach()
