"""EC2's door to the fake cloud answers real boto3 as EC2 does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EndpointConnectionError, HTTPClientError

from tests.fakecloud.aws_region import (
    EPOCH,
    GROUP,
    IMAGE,
    IMAGE_PARAMETER,
    AwsRegion,
    HardwareFacts,
)
from tests.fakecloud.bill import Tariff
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.ec2_door import AwsDoor
from tests.fakecloud.faults import Fault, Garbage, LostRequest, LostResponse, Refused
from tests.fakecloud.http_server import HttpServer
from tests.fakecloud.settings import Settings

TYPE, GPU_TYPE = "m7i.xlarge", "g5.xlarge"
ZONE_A = "eu-central-1a"
ONE_ATTEMPT = Config(retries={"mode": "standard", "total_max_attempts": 1})


@pytest.fixture
def door() -> AwsDoor:
    settings = Settings(
        tariffs={TYPE: Tariff(0.2, minimum=60.0), GPU_TYPE: Tariff(1.0, minimum=60.0)},
        capacity={f"{TYPE}@eu-central-1c": 0},
        has_zonal_tokens=True,
    )
    zones = frozenset({ZONE_A})
    gpu = HardwareFacts(4, 16_384, "A10G", 1, 24_576, zones)
    return AwsDoor(FakeCloud(VirtualClock(), settings), AwsRegion(hardware={GPU_TYPE: gpu}))


@pytest.fixture
def client(door: AwsDoor, aws_environment: None) -> Iterator[Callable[..., Any]]:
    opened = []

    def make(service: str = "ec2", config: Config = ONE_ATTEMPT) -> Any:
        opened.append(boto3.client(service, "eu-central-1", endpoint_url=server.url, config=config))
        return opened[-1]

    with HttpServer(door.answer) as server:
        yield make
        for one in opened:
            one.close()


@pytest.fixture
def ec2(client: Callable[..., Any]) -> Any:
    return client()


def launch(ec2: Any, token: str = "key-1", subnet: str = "subnet-000a", **other: Any) -> Any:
    nic = {"DeviceIndex": 0, "SubnetId": subnet, "Groups": [GROUP]}
    tags = {"ResourceType": "instance", "Tags": [{"Key": "owner", "Value": "ours"}]}
    told = {
        "ImageId": IMAGE,
        "InstanceType": TYPE,
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": token,
        "UserData": "#!/bin/sh\ntrue",
        "NetworkInterfaces": [nic],
        "TagSpecifications": [tags],
        **other,
    }
    return ec2.run_instances(**told)["Instances"][0]


def failure_of(call: Callable[[], object]) -> tuple[str, int]:
    with pytest.raises(ClientError) as caught:
        call()
    response = caught.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


def described(ec2: Any, **told: Any) -> list[Any]:
    reservations = ec2.describe_instances(**told)["Reservations"]
    return [one for reservation in reservations for one in reservation["Instances"]]


def test_a_machine_is_described_as_it_was_asked_for(door: AwsDoor, ec2: Any) -> None:
    door.cloud.clock.advance(50.0)
    spot = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}
    launched = launch(ec2, InstanceMarketOptions=spot)
    (shown,) = described(ec2)
    assert launched == shown
    assert shown["State"] == {"Code": 0, "Name": "pending"}
    assert shown["LaunchTime"] == datetime(2026, 1, 1, 0, 0, 50, tzinfo=UTC)
    facts = ("ClientToken", "InstanceType", "ImageId", "SubnetId", "InstanceLifecycle")
    assert [shown[one] for one in facts] == ["key-1", TYPE, IMAGE, "subnet-000a", "spot"]
    assert shown["Placement"]["AvailabilityZone"] == ZONE_A
    assert shown["Tags"] == [{"Key": "owner", "Value": "ours"}]
    assert door.launches()[0]["InstanceMarketOptions"] == spot
    assert door.cloud.find(shown["InstanceId"]).request.environment["user-data"].startswith("#!")


def test_a_token_is_idempotent_in_its_zone_only(door: AwsDoor, ec2: Any) -> None:
    first = launch(ec2)["InstanceId"]
    assert launch(ec2)["InstanceId"] == first
    assert launch(ec2, subnet="subnet-000b")["InstanceId"] != first
    mismatch = failure_of(lambda: launch(ec2, UserData="#!/bin/sh\nfalse"))
    assert mismatch == ("IdempotentParameterMismatch", 400)
    ec2.terminate_instances(InstanceIds=[first])
    assert failure_of(lambda: launch(ec2)) == ("IdempotentInstanceTerminated", 400)
    found = described(ec2, Filters=[{"Name": "client-token", "Values": ["key-1"]}])
    assert len(found) == len(door.cloud.machines()) == 2


@pytest.mark.parametrize(
    ("other", "code", "status"),
    [
        ({"subnet": "subnet-000c"}, "InsufficientInstanceCapacity", 500),
        ({"InstanceType": "x1.huge"}, "InvalidParameterValue", 400),
        ({"InstanceType": GPU_TYPE, "subnet": "subnet-000b"}, "Unsupported", 400),
        ({"subnet": "subnet-9999"}, "InvalidSubnetID.NotFound", 400),
        ({"ImageId": "ami-1"}, "InvalidAMIID.NotFound", 400),
        ({"UserData": "x" * 16_385}, "InvalidParameterValue", 400),
        ({"token": "x" * 65}, "InvalidParameterValue", 400),
        ({"SubnetId": "subnet-000a"}, "InvalidParameterCombination", 400),
        ({"DryRun": True}, "DryRunOperation", 412),
        (
            {
                "InstanceMarketOptions": {"MarketType": "spot"},
                "InstanceInitiatedShutdownBehavior": "stop",
            },
            "InvalidParameterCombination",
            400,
        ),
    ],
)
def test_what_ec2_refuses_is_refused_and_starts_nothing(
    door: AwsDoor, ec2: Any, other: dict[str, Any], code: str, status: int
) -> None:
    assert failure_of(lambda: launch(ec2, **other)) == (code, status)
    assert door.cloud.machines() == ()


def test_user_data_of_the_greatest_length_is_accepted(ec2: Any) -> None:
    assert launch(ec2, UserData="x" * 16_384)["InstanceId"]


def test_a_right_that_is_missing_shows_in_a_dry_run(door: AwsDoor, ec2: Any) -> None:
    door.denied.add("RunInstances")
    assert failure_of(lambda: launch(ec2, DryRun=True)) == ("UnauthorizedOperation", 403)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (LostRequest(), HTTPClientError),
        (LostResponse(), HTTPClientError),
        (Garbage(), ClientError),
        (Refused("RequestLimitExceeded"), ClientError),
    ],
)
def test_trouble_on_the_way_reaches_boto3_and_a_repetition_makes_one_machine(
    door: AwsDoor, ec2: Any, fault: Fault, error: type[Exception]
) -> None:
    door.cloud.faults.next("launch", fault)
    with pytest.raises((error, EndpointConnectionError)):
        launch(ec2)
    launch(ec2)
    assert len(door.cloud.machines()) == 1
    assert door.calls() == {"RunInstances": 2}


def test_all_pages_are_found_and_no_machine_twice(ec2: Any) -> None:
    launched = [launch(ec2, f"key-{number}")["InstanceId"] for number in range(12)]
    pages = ec2.get_paginator("describe_instances").paginate(
        Filters=[{"Name": "tag:owner", "Values": ["ours"]}], MaxResults=5
    )
    shown = [[r["Instances"][0]["InstanceId"] for r in page["Reservations"]] for page in pages]
    assert [len(page) for page in shown] == [5, 5, 2]
    assert [machine for page in shown for machine in page] == launched


@pytest.mark.parametrize(
    ("name", "values", "count"),
    [
        ("tag:owner", ["ours"], 1),
        ("tag:owner", ["*"], 1),
        ("tag:owner", ["theirs"], 0),
        ("tag-key", ["owner"], 1),
        ("tag-key", ["own"], 0),
        ("instance-state-name", ["pending", "running"], 1),
        ("instance-id", ["i-00000001"], 1),
        ("client-token", ["key-2"], 0),
    ],
)
def test_filters_select_machines(ec2: Any, name: str, values: list[str], count: int) -> None:
    launch(ec2)
    assert len(described(ec2, Filters=[{"Name": name, "Values": values}])) == count


def test_an_unknown_filter_is_refused(ec2: Any) -> None:
    launch(ec2)
    wrong = [{"Name": "label", "Values": ["a"]}]
    assert failure_of(lambda: described(ec2, Filters=wrong))[0] == "InvalidParameterValue"


def test_one_wrong_id_fails_the_termination_of_all(door: AwsDoor, ec2: Any) -> None:
    machine = launch(ec2)["InstanceId"]
    for wrong, code in (("i-0000ffff", "NotFound"), ("never-launched", "Malformed")):
        told = failure_of(lambda wrong=wrong: ec2.terminate_instances(InstanceIds=[machine, wrong]))
        assert told == (f"InvalidInstanceID.{code}", 400)
    assert door.cloud.find(machine).stops == []
    (ended,) = ec2.terminate_instances(InstanceIds=[machine])["TerminatingInstances"]
    assert ended["CurrentState"] == {"Code": 32, "Name": "shutting-down"}
    door.cloud.clock.advance(60.0)
    (shown,) = described(ec2)
    assert shown["State"]["Name"] == "terminated"
    assert shown["StateReason"]["Code"] == "Client.UserInitiatedShutdown"


@pytest.mark.parametrize(
    ("told", "state"),
    [({}, "stopped"), ({"InstanceInitiatedShutdownBehavior": "terminate"}, "terminated")],
)
def test_a_machine_that_powers_itself_off_is_stopped_unless_asked_otherwise(
    door: AwsDoor, ec2: Any, told: dict[str, str], state: str
) -> None:
    machine = launch(ec2, **told)["InstanceId"]
    door.cloud.clock.advance(60.0)
    door.cloud.power_off(machine)
    door.cloud.clock.advance(60.0)
    (shown,) = described(ec2)
    assert shown["State"]["Name"] == state
    assert shown["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_types_zones_images_and_prices_are_told(door: AwsDoor, ec2: Any) -> None:
    shown = ec2.describe_instance_types(InstanceTypes=[GPU_TYPE])["InstanceTypes"][0]
    assert (shown["VCpuInfo"]["DefaultVCpus"], shown["MemoryInfo"]["SizeInMiB"]) == (4, 16_384)
    assert shown["GpuInfo"]["Gpus"][0]["Count"] == 1
    offerings = ec2.describe_instance_type_offerings(LocationType="availability-zone")
    sold = [(one["InstanceType"], one["Location"]) for one in offerings["InstanceTypeOfferings"]]
    assert sold == [*((TYPE, zone) for zone in door.region.zones), (GPU_TYPE, ZONE_A)]
    subnets = ec2.describe_subnets(SubnetIds=["subnet-000b"])["Subnets"]
    assert [subnet["AvailabilityZone"] for subnet in subnets] == ["eu-central-1b"]
    assert ec2.describe_images(ImageIds=[IMAGE])["Images"][0]["RootDeviceName"] == "/dev/xvda"


def test_the_spot_price_moves(door: AwsDoor, ec2: Any) -> None:
    door.cloud.clock.advance(1500.0)
    told = {"InstanceTypes": [TYPE], "AvailabilityZone": ZONE_A, "StartTime": EPOCH}
    prices = ec2.describe_spot_price_history(**told)["SpotPriceHistory"]
    assert [(one["Timestamp"] - EPOCH).total_seconds() for one in prices] == [1200.0, 600.0, 0.0]
    dollars = [float(one["SpotPrice"]) for one in prices]
    assert len(set(dollars)) == 3
    assert all(0.06 <= one <= 0.14 for one in dollars)
    now = ec2.describe_spot_price_history(**{**told, "StartTime": datetime.now(UTC)})
    assert now["SpotPriceHistory"] == prices[:1]


def test_the_caller_and_public_parameters_are_told(client: Callable[..., Any]) -> None:
    assert client("sts").get_caller_identity()["Account"] == "123456789012"
    ssm = client("ssm")
    assert ssm.get_parameter(Name=IMAGE_PARAMETER)["Parameter"]["Value"] == IMAGE
    assert failure_of(lambda: ssm.get_parameter(Name="/aws/other")) == ("ParameterNotFound", 400)


@pytest.mark.parametrize(
    ("retries", "attempts"),
    [({"mode": "standard", "total_max_attempts": 1}, 1), ({"mode": "standard"}, 3)],
)
def test_boto3_itself_repeats_what_is_sold_out_unless_told_otherwise(
    door: AwsDoor, client: Callable[..., Any], retries: dict[str, Any], attempts: int
) -> None:
    ec2 = client(config=Config(retries=retries))
    assert failure_of(lambda: launch(ec2, subnet="subnet-000c"))[1] == 500
    assert door.calls() == {"RunInstances": attempts}
