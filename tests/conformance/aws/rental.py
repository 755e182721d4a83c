"""What the tests of the AWS provider rent, and from which door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from service.clouds.aws import AwsProvider, open_clients
from service.clouds.aws_entry import AwsEntry
from service.clouds.labels import OWNER_LABEL
from tests.conformance.clouds import UsualLaunch
from tests.fakecloud.aws_region import GROUP, IMAGE, AwsRegion, HardwareFacts
from tests.fakecloud.bill import Tariff
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.ec2_door import AwsDoor
from tests.fakecloud.http_server import HttpServer
from tests.fakecloud.settings import Settings

TYPE, GPU_TYPE = "m7i.xlarge", "g5.xlarge"
ZONE, OTHER_ZONE, SOLD_OUT = "eu-central-1a", "eu-central-1b", "eu-central-1c"
SUBNETS = {ZONE: "subnet-000a", OTHER_ZONE: "subnet-000b", SOLD_OUT: "subnet-000c"}
LAG = 5.0
USUAL = UsualLaunch(
    offer={"cloud": "aws-frankfurt", "zone": ZONE, "machine_type": TYPE, "image": IMAGE},
    labels={"purpose": "conformance", OWNER_LABEL: "ours"},
)

Open = Callable[..., AwsProvider]


class Gate(HttpServer):
    """Leads to the door of the test that runs.

    All tests have the same address so, and the SDK's clients, which take a second to make.

    Attributes:
        clients: Of the SDK, for this address.
    """

    door: AwsDoor

    def __init__(self) -> None:
        super().__init__(lambda asked: self.door.answer(asked))
        self.clients = open_clients(entry(endpoint=self.url))


def make_door() -> AwsDoor:
    tariff = Tariff(0.2, minimum=60.0, address_per_hour=0.005)
    manners = Settings(
        seed=1,
        tariffs={TYPE: tariff, GPU_TYPE: tariff},
        capacity={f"{TYPE}@{SOLD_OUT}": 0},
        has_zonal_tokens=True,
        list_lag=LAG,
        page=1000,
    )
    region = AwsRegion(hardware={GPU_TYPE: HardwareFacts(zones=frozenset({ZONE}))})
    return AwsDoor(FakeCloud(VirtualClock(), manners), region)


def entry(**changes: Any) -> AwsEntry:
    facts = {
        "region": "eu-central-1",
        "subnets": SUBNETS,
        "security_group": GROUP,
        "image": IMAGE,
    }
    return AwsEntry.model_validate({**facts, **changes})
