"""The provider of EC2, with real boto3 on the way to a fake cloud behind EC2's own protocol."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import boto3
import pytest
from moto import mock_aws

from service.clouds.aws import AwsProvider
from service.clouds.aws_entry import AwsEntry
from service.clouds.provider import EndReason, Instance, InstanceState, Provider
from service.errors import LaunchRefused, ProviderUnavailable
from service.settings import Settings as ControllerSettings
from tests.conformance.aws.rental import LAG, OTHER_ZONE, TYPE, USUAL, ZONE, Gate, Open
from tests.conformance.clouds import Eventually, ProviderConformance, Request, is_gone, is_up, state
from tests.fakecloud.aws_region import GROUP, IMAGE, PROFILE
from tests.fakecloud.ec2_door import AwsDoor
from tests.fakecloud.faults import Omitted
from tests.fakecloud.machine import Reason


class TestAwsProvider(ProviderConformance):
    @pytest.fixture
    def provider(self, reach: Open) -> Callable[[], Provider]:
        return reach

    @pytest.fixture
    def destroy(self, door: AwsDoor) -> Callable[[Instance], None]:
        return lambda machine: door.cloud.interrupt(machine.provider_id)


def test_a_launch_asks_for_what_ends_with_the_machine_and_for_nothing_more(
    door: AwsDoor, aws: AwsProvider, request_for: Request
) -> None:
    request = request_for()
    aws.launch(request)
    (told,) = door.launches()
    tags = {
        "Name": "scavenger-key-1",
        "scavenger-job": "job-1",
        **USUAL.labels,
    }
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    assert {name: one for name, one in told.items() if name != "UserData"} == {
        "ClientToken": "key-1",
        "MinCount": 1,
        "MaxCount": 1,
        "ImageId": IMAGE,
        "InstanceType": TYPE,
        "NetworkInterfaces": [
            {
                "DeviceIndex": 0,
                "SubnetId": "subnet-000a",
                "Groups": [GROUP],
                "AssociatePublicIpAddress": False,
                "DeleteOnTermination": True,
            }
        ],
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/xvda",
                "Ebs": {
                    "VolumeSize": 30,
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": pairs}
            for kind in ("instance", "volume", "network-interface")
        ],
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
        },
    }
    assert request.boot.token in user_data_of(door)


def user_data_of(door: AwsDoor, number: int = 0) -> str:
    made = door.cloud.machines()[number].description.id
    return door.cloud.find(made).request.environment["user-data"]


def test_an_entry_chooses_disk_address_profile_and_type(
    door: AwsDoor, reach: Open, request_for: Request
) -> None:
    changes = {"disk_gib": 200, "public_address": True, "instance_profile": PROFILE}
    aws = reach(machine_type=TYPE, **changes)
    aws.launch(request_for())
    (told,) = door.launches()
    assert told["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 200
    assert told["NetworkInterfaces"][0]["AssociatePublicIpAddress"] is True
    assert told["IamInstanceProfile"] == {"Name": PROFILE}
    assert aws.traits.machine_type == TYPE


def test_a_spot_machine_is_asked_for_once_and_without_a_price(
    door: AwsDoor, aws: AwsProvider, request_for: Request
) -> None:
    machine = aws.launch(request_for(market="spot"))
    assert door.launches()[0]["InstanceMarketOptions"] == {
        "MarketType": "spot",
        "SpotOptions": {
            "SpotInstanceType": "one-time",
            "InstanceInterruptionBehavior": "terminate",
        },
    }
    assert door.cloud.find(machine.provider_id).request.market == "spot"


def test_a_launch_script_of_the_longest_values_is_accepted(
    door: AwsDoor, aws: AwsProvider, request_for: Request
) -> None:
    request = request_for()
    longest = replace(
        request.boot,
        controller=f"https://{'c' * 253}:65535",
        job="j" * 63,
        worker="w" * 128,
        token="t" * 160,
        prepaid=0.1 + 0.2,
        ca="b" * 64,
    )
    aws.launch(replace(request, boot=longest))
    assert user_data_of(door).startswith("#!/bin/sh\n")


def test_a_machine_that_powers_itself_off_is_gone(
    door: AwsDoor, aws: AwsProvider, request_for: Request, eventually: Eventually
) -> None:
    machine = aws.launch(request_for())
    eventually(lambda: is_up(aws, machine))
    door.cloud.power_off(machine.provider_id)
    eventually(lambda: is_gone(aws, machine))


def test_a_machine_that_hears_of_no_lease_is_gone_when_its_prepaid_time_is_over(
    door: AwsDoor, aws: AwsProvider, request_for: Request
) -> None:
    machine = aws.launch(request_for(prepaid=600.0))
    for seconds, is_over in ((620.0, False), (60.0, True)):
        door.cloud.clock.advance(seconds)
        assert is_gone(aws, machine) is is_over
    # 30 s of boot, 600 s, 10 s of ending.
    assert door.cloud.bill().total == pytest.approx(0.2 * 640 / 3600)


def test_each_launch_is_one_request_once_the_image_is_known(
    door: AwsDoor, aws: AwsProvider, request_for: Request
) -> None:
    for number in range(3):
        aws.launch(request_for(key=f"key-{number}"))
    assert door.calls() == {"DescribeImages": 1, "RunInstances": 3}


def test_a_key_repeated_otherwise_waits_until_its_machine_is_shown(
    door: AwsDoor, aws: AwsProvider, request_for: Request
) -> None:
    machine = aws.launch(request_for())
    with pytest.raises(ProviderUnavailable, match="not shown yet"):
        aws.launch(request_for(prepaid=59.0))
    door.cloud.clock.advance(LAG)
    assert aws.launch(request_for(prepaid=59.0)).provider_id == machine.provider_id


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "UnauthorizedOperation", "InternalError"])
def test_no_failure_to_find_a_machine_that_exists_counts_as_a_refusal(
    door: AwsDoor, aws: AwsProvider, request_for: Request, code: str
) -> None:
    aws.launch(request_for())
    door.refuse_next("DescribeInstances", code)
    with pytest.raises(ProviderUnavailable, match=code):
        aws.launch(request_for(prepaid=59.0))


def test_a_key_whose_machine_ended_is_used_up_with_any_parameters(
    door: AwsDoor, aws: AwsProvider, request_for: Request
) -> None:
    machine = aws.launch(request_for())
    door.cloud.clock.advance(LAG)
    aws.terminate(machine.provider_id)
    door.cloud.clock.advance(60.0)
    for prepaid in (60.0, 59.0):
        with pytest.raises(LaunchRefused, match="key-1"):
            aws.launch(request_for(prepaid=prepaid))
    # EC2 may also tell the mismatch first.
    door.refuse_next("RunInstances", "IdempotentParameterMismatch")
    with pytest.raises(LaunchRefused, match="key-1 has ended"):
        aws.launch(request_for(prepaid=59.0))


def test_the_machine_of_the_same_key_in_another_zone_is_not_adopted(
    door: AwsDoor, aws: AwsProvider, request_for: Request
) -> None:
    here, there = aws.launch(request_for()), aws.launch(request_for(zone=OTHER_ZONE))
    assert here.provider_id != there.provider_id
    door.cloud.clock.advance(LAG)
    again = aws.launch(request_for(zone=OTHER_ZONE, prepaid=59.0))
    assert again.provider_id == there.provider_id


def test_a_launch_key_comes_from_the_token_and_never_from_a_tag(
    door: AwsDoor, aws: AwsProvider, request_for: Request, gate: Gate
) -> None:
    aws.launch(request_for())
    told = dict(door.launches()[0])
    copied = {**told, "ClientToken": "by-hand", "UserData": "#!/bin/sh"}
    gate.clients["ec2"].run_instances(**copied)
    door.cloud.clock.advance(LAG)
    assert [one.launch_key for one in aws.list()] == ["key-1", "by-hand"]


def test_a_copy_made_by_hand_is_not_adopted(
    door: AwsDoor, aws: AwsProvider, request_for: Request, gate: Gate
) -> None:
    door.refuse_next("RunInstances", "InternalError")
    with pytest.raises(ProviderUnavailable):
        aws.launch(request_for())
    gate.clients["ec2"].run_instances(**{**door.launches()[0], "ClientToken": "by-hand"})
    machine = aws.launch(request_for())
    door.cloud.clock.advance(LAG)
    assert aws.launch(request_for(prepaid=59.0)) == machine


def test_all_pages_of_a_list_are_read_and_others_machines_left_out(
    door: AwsDoor, aws: AwsProvider, request_for: Request, gate: Gate
) -> None:
    aws.launch(request_for())
    told = dict(door.launches()[0])
    told["TagSpecifications"] = []
    client = gate.clients["ec2"]
    client.run_instances(**{**told, "ClientToken": "other"})
    object.__setattr__(door.cloud.settings, "page", 3)
    machines = [aws.launch(request_for(key=f"key-{number}")) for number in range(2, 9)]
    door.cloud.clock.advance(LAG)
    assert [one.provider_id for one in aws.list()[1:]] == [one.provider_id for one in machines]
    assert door.calls()["DescribeInstances"] == 3
    assert {
        one.parameters["MaxResults"] for one in door.asked if "MaxResults" in one.parameters
    } == {1000}


def test_a_list_that_leaves_all_out_is_believed(
    door: AwsDoor, aws: AwsProvider, request_for: Request
) -> None:
    aws.launch(request_for())
    door.cloud.clock.advance(LAG)
    door.cloud.faults.next("list", Omitted())
    assert aws.list() == ()


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("Server.InsufficientInstanceCapacity", EndReason.SOLD_OUT),
        ("Server.SpotInstanceTermination", EndReason.TAKEN),
        ("Server.SpotInstanceShutdown", EndReason.TAKEN),
        ("Server.InternalError", EndReason.FAILED),
        ("Client.VolumeLimitExceeded", EndReason.FAILED),
        ("Client.InternalError", EndReason.FAILED),
        ("Client.InvalidSnapshot.NotFound", EndReason.FAILED),
        ("Client.UserInitiatedShutdown", None),
        ("Client.InstanceInitiatedShutdown", None),
        ("Server.NewReason", None),
    ],
)
def test_a_machine_that_ended_says_why(
    door: AwsDoor,
    aws: AwsProvider,
    request_for: Request,
    eventually: Eventually,
    told: str,
    reason: EndReason | None,
) -> None:
    door.state_reasons[Reason.FAILED] = told
    machine = aws.launch(request_for())
    door.cloud.interrupt(machine.provider_id, reason=Reason.FAILED)
    eventually(lambda: is_gone(aws, machine))
    (listed,) = aws.list()
    assert (listed.reason, machine.reason) == (reason, None)


def shown_states(gate: Gate) -> list[str]:
    reservations = gate.clients["ec2"].describe_instances()["Reservations"]
    return [one["State"]["Name"] for each in reservations for one in each["Instances"]]


def test_a_machine_stopped_by_hand_is_stopped_until_it_is_ended(
    door: AwsDoor, aws: AwsProvider, request_for: Request, gate: Gate, eventually: Eventually
) -> None:
    aws.launch(request_for())
    told = {**door.launches()[0], "ClientToken": "key-2"}
    told["InstanceInitiatedShutdownBehavior"] = "stop"
    client = gate.clients["ec2"]
    client.run_instances(**told)
    door.cloud.clock.advance(60.0)
    second = aws.list()[1]
    door.cloud.power_off(second.provider_id)
    door.cloud.clock.advance(LAG)
    assert shown_states(gate) == ["running", "stopping"]
    assert state(aws, second) is InstanceState.STOPPED
    eventually(lambda: shown_states(gate) == ["running", "stopped"])
    assert state(aws, second) is InstanceState.STOPPED
    aws.terminate(second.provider_id)
    eventually(lambda: is_gone(aws, second))


def test_many_threads_share_one_provider(
    door: AwsDoor, aws: AwsProvider, request_for: Request
) -> None:
    requests = [request_for(key=f"key-{number % 8}") for number in range(32)]
    with ThreadPoolExecutor(16) as threads:
        launched = list(threads.map(aws.launch, requests))
    assert len({one.provider_id for one in launched}) == len(door.cloud.machines()) == 8


@mock_aws
def test_moto_accepts_the_same_parameters_and_shows_the_same_shapes(
    request_for: Request,
) -> None:
    """The door and the provider were written by one hand; moto by another.

    What moto 5.2 does not have, so that only the door tests it: a client token used again (it
    starts a second machine), tokens by zone, IdempotentParameterMismatch and
    IdempotentInstanceTerminated, MaxCount beyond what there is, capacity, quota, the limit of user
    data, lag, an end that takes time, the reasons of ends by the cloud.
    """
    ec2 = boto3.client("ec2", "eu-central-1")
    subnets = {
        one["AvailabilityZone"]: one["SubnetId"] for one in ec2.describe_subnets()["Subnets"]
    }
    group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    parameter = "ssm:/aws/service/ami-amazon-linux-latest/amzn2-ami-hvm-x86_64-gp2"
    facts = {"region": "eu-central-1", "subnets": subnets, "security_group": group}
    told = AwsEntry.model_validate({**facts, "image": parameter})
    aws = AwsProvider.open("aws-frankfurt", told, ControllerSettings())
    assert aws.account == "123456789012/eu-central-1"
    for number, market in enumerate(("on_demand", "spot")):
        request = request_for(key=f"key-{number}", market=market)
        request = replace(request, offer=replace(request.offer, image=aws.traits.image))
        machine = aws.launch(request)
        assert (machine.launch_key, machine.job, machine.zone) == (f"key-{number}", "job-1", ZONE)
        assert machine.labels == request.labels
        assert is_up(aws, machine)
        aws.terminate(machine.provider_id)
        assert is_gone(aws, machine)
        assert aws.list()[-1].reason is None
    aws.terminate("i-0123456789abcdef0")
