"""Amazon EC2, played by a fake cloud: boto3 calls it over HTTP."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from unittest.mock import patch

from service.clouds.aws import AwsProvider, open_clients
from service.clouds.aws_entry import AwsEntry
from service.clouds.provider import Provider
from service.prices import PricedRegion
from tests.builders import NOW
from tests.fakecloud.aws_region import GROUP, IMAGE, AwsRegion
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.ec2_door import AwsDoor
from tests.fakecloud.emulator import MACHINE_TYPE, Tap, rented_habits
from tests.fakecloud.http_server import Answer, HttpRequest, HttpServer

REGION, DISK_GIB, PRICES_TOLD_AFTER = "eu-central-1", 30, 240.0
CHANGING = ("RunInstances", "TerminateInstances")
# Nothing of this computer's, and no proxy.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "id",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1",
}


class AwsEmulator(HttpServer):
    """Serves EC2 at one address, since the SDK's clients take long to make.

    Args:
        zones: Their letters, best first.
        epoch: What a calendar shows when the cloud's clock begins.
    """

    habits = rented_habits(
        PricedRegion("aws", REGION, "gp3", DISK_GIB),
        "0.0952",
        "0.005",
        region=REGION,
        manners={"has_zonal_tokens": True, "page": 1000},
    )

    def __init__(self, zones: str = "ab", epoch: datetime = NOW) -> None:
        super().__init__(self._answer)
        self.tap = Tap()
        subnets = {self.habits.zone(letter): f"subnet-000{letter}" for letter in zones}
        self._region = AwsRegion(
            subnets={subnet: zone for zone, subnet in subnets.items()},
            epoch=epoch,
            price_delay=PRICES_TOLD_AFTER,
        )
        self._entry = AwsEntry.model_validate(
            {
                "region": REGION,
                "subnets": subnets,
                "security_group": GROUP,
                "image": IMAGE,
                "machine_type": MACHINE_TYPE,
                "disk_gib": DISK_GIB,
                "public_address": True,
                "endpoint": self.url,
            }
        )
        with patch.dict(os.environ, CREDENTIALS):
            self._clients: Mapping[str, Any] = open_clients(self._entry)
        for client in self._clients.values():
            client.meta.events.register("before-send", self._begin)
            client.meta.events.register("response-received", self._end)

    def play(self, cloud: FakeCloud) -> None:
        self.door = AwsDoor(cloud, self._region)

    def open(self) -> Provider:
        return AwsProvider("aws", self._entry, self._clients)

    def disconnect(self) -> None:
        for client in self._clients.values():
            client.close()

    def memory(self) -> object:
        return None

    def _answer(self, request: HttpRequest) -> Answer:
        with self.tap.during():
            return self.door.answer(request)

    def _begin(self, *, event_name: str, **_: object) -> None:
        self.tap.before(event_name.endswith(CHANGING))

    def _end(self, **_: object) -> None:
        self.tap.after()
