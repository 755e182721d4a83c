"""The provider of EC2, with real boto3 on the way to a fake cloud behind EC2's own protocol."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moto import mock_aws
from pydantic import ValidationError

from service.clouds.aws import AwsProvider, open_clients
from service.clouds.aws_entry import AwsEntry
from service.clouds.aws_errors import error_of
from service.clouds.aws_prices import on_demand_prices
from service.clouds.labels import OWNER_LABEL
from service.clouds.provider import EndReason, Instance, InstanceState, LaunchRequest, Provider
from service.clouds.registry import open_clouds
from service.errors import (
    CloudError,
    CloudsFileRefused,
    CredentialsRefused,
    LaunchKeyUsed,
    LaunchRefused,
    MachineTypeUnsold,
    OutOfCapacity,
    ProviderUnavailable,
    QuotaReached,
    SpotRefused,
    Throttled,
)
from service.prices import judge_update
from service.settings import Settings as ControllerSettings
from tests.conformance.clouds import (
    Eventually,
    ProviderConformance,
    Request,
    is_gone,
    is_up,
    state,
)
from tests.docs.test_docs import DOCS, blocks
from tests.fakecloud.aws_region import (
    EPOCH,
    GROUP,
    IMAGE,
    IMAGE_PARAMETER,
    PROFILE,
    AwsRegion,
    HardwareFacts,
)
from tests.fakecloud.bill import Tariff
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.ec2_door import AwsDoor
from tests.fakecloud.faults import (
    Duplicate,
    Fault,
    Garbage,
    LateRequest,
    LostRequest,
    LostResponse,
    Omitted,
)
from tests.fakecloud.http_server import HttpServer
from tests.fakecloud.machine import Reason
from tests.fakecloud.settings import Settings

TYPE, GPU_TYPE = "m7i.xlarge", "g5.xlarge"
ZONE, OTHER_ZONE, SOLD_OUT = "eu-central-1a", "eu-central-1b", "eu-central-1c"
SUBNETS = {ZONE: "subnet-000a", OTHER_ZONE: "subnet-000b", SOLD_OUT: "subnet-000c"}
PORTAL = b"<html><head><title>Welcome</title></head><body>Please sign in</body></html>"
LAG = 5.0

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


@pytest.fixture(scope="module")
def gate(aws_environment: None) -> Iterator[Gate]:
    with Gate() as opened:
        yield opened


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


@pytest.fixture
def door(gate: Gate) -> AwsDoor:
    gate.door = make_door()
    return gate.door


def entry(**changes: Any) -> AwsEntry:
    facts = {
        "region": "eu-central-1",
        "subnets": SUBNETS,
        "security_group": GROUP,
        "image": IMAGE,
    }
    return AwsEntry.model_validate({**facts, **changes})


@pytest.fixture
def reach(gate: Gate, door: AwsDoor) -> Open:
    return lambda **changes: AwsProvider("aws-frankfurt", entry(**changes), gate.clients)


@pytest.fixture
def aws(reach: Open) -> AwsProvider:
    return reach()


@pytest.fixture
def request_for(request_for: Request) -> Request:
    """Requests as the shared fixture makes them, for places of this region."""

    def make(*command: str, market: str = "on_demand", **changes: Any) -> LaunchRequest:
        made = request_for(*command, **{"zone": ZONE, "machine_type": TYPE, **changes})
        offer = replace(made.offer, cloud="aws-frankfurt", image=IMAGE, market=market)
        return replace(
            made,
            offer=offer,
            boot=replace(made.boot, agent="a" * 64),
            labels={**made.labels, OWNER_LABEL: "ours"},
        )

    return make


@pytest.fixture
def eventually(door: AwsDoor) -> Eventually:
    def advance_until(is_true: Callable[[], object]) -> None:
        for _ in range(120):
            if is_true():
                return
            door.cloud.clock.advance(1.0)
        assert is_true()

    return advance_until


class TestAwsProvider(ProviderConformance):
    @pytest.fixture
    def provider(self, reach: Open) -> Callable[[], Provider]:
        return reach

    @pytest.fixture
    def destroy(self, door: AwsDoor) -> Callable[[Instance], None]:
        return lambda machine: door.cloud.interrupt(machine.provider_id)


# What is asked for


def test_a_launch_asks_for_what_ends_with_the_machine_and_for_nothing_more(
    door: AwsDoor, aws: AwsProvider, request_for: Request
) -> None:
    request = request_for()
    aws.launch(request)
    (told,) = door.launches()
    tags = {
        "Name": "scavenger-key-1",
        "scavenger-job": "job-1",
        "purpose": "conformance_test",
        "owner-1": "none",
        OWNER_LABEL: "ours",
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


def test_spot_prices_are_every_change_since_a_moment(door: AwsDoor, aws: AwsProvider) -> None:
    door.cloud.clock.advance(4000.0)
    (everything, since) = (aws.spot_prices(ZONE, TYPE, EPOCH), 1500.0)
    seen = aws.spot_prices(ZONE, TYPE, EPOCH + timedelta(seconds=since))
    shares = list(door.cloud.settings.spot.changes(f"{TYPE}@{ZONE}+spot", since, 4000.0))
    assert len(seen) == len(shares) < len(everything)
    assert [each.since for each in seen] == sorted(each.since for each in seen)
    for each, (_, share) in zip(seen, shares, strict=True):
        assert float(each.price_per_hour) == pytest.approx(0.2 * float(share), abs=1e-6)


def test_each_launch_is_one_request_once_the_image_is_known(
    door: AwsDoor, aws: AwsProvider, request_for: Request
) -> None:
    for number in range(3):
        aws.launch(request_for(key=f"key-{number}"))
    assert door.calls() == {"DescribeImages": 1, "RunInstances": 3}


# The entry and what is asked at the start


def test_the_account_is_asked_for_once_and_the_traits_never(door: AwsDoor, reach: Open) -> None:
    aws = reach()
    assert aws.traits.zones == (ZONE, OTHER_ZONE, SOLD_OUT)
    assert door.calls() == {}
    for _ in range(2):
        assert aws.account == "123456789012/eu-central-1"
    assert door.calls() == {"GetCallerIdentity": 1, "DescribeSubnets": 1}


def test_the_name_of_an_image_is_looked_up_at_the_first_launch(
    door: AwsDoor, reach: Open, request_for: Request
) -> None:
    aws = reach(image=f"ssm:{IMAGE_PARAMETER}")
    for number in range(2):
        request = request_for(key=f"key-{number}")
        aws.launch(replace(request, offer=replace(request.offer, image=aws.traits.image)))
    assert {asked["ImageId"] for asked in door.launches()} == {IMAGE}
    assert door.calls()["GetParameter"] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subnets": {ZONE: "subnet-000b"}}, "subnet-000b is in zone eu-central-1b"),
        ({"subnets": {ZONE: "subnet-9999"}}, "InvalidSubnetID.NotFound"),
        ({"image": "ssm:/aws/service/other"}, "ParameterNotFound"),
    ],
)
def test_an_entry_that_names_what_aws_does_not_have_is_refused(
    reach: Open, changes: dict[str, Any], message: str
) -> None:
    aws = reach(**changes)
    with pytest.raises(CloudsFileRefused, match=message):
        _ = aws.account


@pytest.mark.parametrize(
    "changes",
    [
        {"region": "Frankfurt"},
        {"subnets": {}},
        {"subnets": {ZONE: "vpc-1"}},
        {"subnets": {"us-east-1a": "subnet-1"}},
        {"subnets": {ZONE: "subnet-1", OTHER_ZONE: "subnet-1"}},
        {"security_group": "default"},
        {"image": "ubuntu"},
        {"image": "ssm:/my/parameter"},
        {"disk_gib": 0},
        {"access_key": "AKIA"},
        {"endpoint": "http://ec2.example.com"},
    ],
)
def test_an_entry_that_makes_no_sense_is_not_accepted(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        entry(**changes)


PAGE = DOCS / "clouds.md"
(EXAMPLE,) = (block for block in blocks(PAGE, "yaml") if "provider: aws" in block)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "    disk: 30",
            "line 8, column 5: clouds.aws-frankfurt.disk: .* aws are provider, region",
        ),
        ("    disk_gib: many", r"line 8, column 5: clouds.aws-frankfurt.disk_gib: must be .*many"),
        ("    aws_access_key_id: id", "line 8, column 5: .*credentials do not belong"),
        ("    checkpoints: s3://kept", "line 8, column 5: .*checkpoints: must be a mapping, got"),
        ("    checkpoints: {}", "checkpoints.bucket: is missing: .* a bucket are bucket, prefix"),
        ("    checkpoints: {bucket: kept, secret: 1}", "checkpoints.secret: unknown key"),
        ("    checkpoints: {bucket: Kept}", 'checkpoints.bucket: "Kept" does not fit: Name of'),
        ("    checkpoints: {bucket: kept, prefix: ../x}", "checkpoints.prefix: .* does not fit"),
    ],
)
def test_the_entry_of_the_docs_opens_and_a_wrong_line_is_named(
    aws_environment: None, tmp_path: Path, line: str, words: str
) -> None:
    file = tmp_path / "clouds.yaml"
    file.write_text(EXAMPLE)
    (opened,) = open_clouds(ControllerSettings(clouds=file))
    assert isinstance(opened, AwsProvider)
    assert (opened.name, opened.traits.zones) == ("aws-frankfurt", (ZONE, OTHER_ZONE))
    file.write_text(f"{EXAMPLE}{line}\n")
    with pytest.raises(CloudsFileRefused, match=words) as caught:
        open_clouds(ControllerSettings(clouds=file))
    assert "endpoint" not in str(caught.value)


def test_the_docs_list_every_key_of_an_entry() -> None:
    section = PAGE.read_text().split("\n## AWS\n")[1].split("\n## ")[0]
    table = re.findall(r"^\| `(\w+)` \| [^|]*\| ([^|]+) \|$", section, re.MULTILINE)
    fields = AwsEntry.model_fields.items()
    keys = {key: field.description or "" for key, field in fields if not field.exclude}
    assert [key for key, _ in table] == list(keys)
    assert all(keys[key].startswith(meaning.rstrip(".")) for key, meaning in table)


def test_missing_credentials_are_told_as_such(
    aws_environment: None, monkeypatch: pytest.MonkeyPatch, request_for: Request
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    aws = AwsProvider.open("aws-frankfurt", entry(), ControllerSettings())
    calls: tuple[Callable[[], object], ...] = (aws.list, lambda: aws.launch(request_for()))
    for call in calls:
        with pytest.raises(CredentialsRefused, match="no credentials"):
            call()
    with pytest.raises(CredentialsRefused, match="unheard-of"):
        AwsProvider.open("aws-frankfurt", entry(profile="unheard-of"), ControllerSettings())


EXPIRED = """{"Version": 1, "AccessKeyId": "id", "SecretAccessKey": "secret",
 "SessionToken": "token", "Expiration": "2020-01-01T00:00:00Z"}"""


@pytest.mark.parametrize("process", ["cat {}", "false"])
def test_credentials_that_cannot_be_renewed_are_told_as_such(
    aws_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, process: str
) -> None:
    answer, config = tmp_path / "answer", tmp_path / "config"
    answer.write_text(EXPIRED)
    config.write_text(f"[profile expired]\ncredential_process = {process.format(answer)}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    with pytest.raises(CredentialsRefused, match="no credentials"):
        AwsProvider.open("aws-frankfurt", entry(profile="expired"), ControllerSettings()).list()


# Errors

PLACE, QUOTA = (OutOfCapacity, ProviderUnavailable), (QuotaReached, ProviderUnavailable)
SLOWER, PERSON = (Throttled, Throttled), (CredentialsRefused, CredentialsRefused)
HOPELESS = (LaunchRefused, ProviderUnavailable)
UNKNOWN = (ProviderUnavailable, ProviderUnavailable)
ERRORS: dict[str, tuple[type[CloudError], type[CloudError]]] = {
    "InsufficientInstanceCapacity": PLACE,
    "UnfulfillableCapacity": PLACE,
    "InsufficientHostCapacity": PLACE,
    "InsufficientFreeAddressesInSubnet": PLACE,
    "SpotMaxPriceTooLow": PLACE,
    "Unsupported": (MachineTypeUnsold, ProviderUnavailable),
    "VcpuLimitExceeded": QUOTA,
    "InstanceLimitExceeded": QUOTA,
    "MaxSpotInstanceCountExceeded": QUOTA,
    "RequestLimitExceeded": SLOWER,
    "EC2ThrottledException": SLOWER,
    "Throttling": SLOWER,
    "ThrottlingException": SLOWER,
    "AuthFailure": PERSON,
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": (SpotRefused, ProviderUnavailable),
    "UnauthorizedOperation": PERSON,
    "ExpiredToken": PERSON,
    "OptInRequired": PERSON,
    "PendingVerification": PERSON,
    "Blocked": PERSON,
    "InvalidClientTokenId": PERSON,
    "InvalidParameterValue": HOPELESS,
    "InvalidAMIID.NotFound": HOPELESS,
    "MissingParameter": HOPELESS,
    "IdempotentInstanceTerminated": (LaunchKeyUsed, ProviderUnavailable),
    "NewCodeOfNextYear": HOPELESS,
    "InternalError": UNKNOWN,
    "Unavailable": UNKNOWN,
    "ServerInternal": UNKNOWN,
}


@pytest.mark.parametrize("code", ERRORS)
def test_each_code_has_one_meaning_and_is_asked_for_once(
    door: AwsDoor, aws: AwsProvider, request_for: Request, code: str
) -> None:
    of_launch, of_other = ERRORS[code]
    rows: tuple[tuple[str, Callable[[], object], type[CloudError]], ...] = (
        ("RunInstances", lambda: aws.launch(request_for()), of_launch),
        ("DescribeInstances", aws.list, of_other),
        ("TerminateInstances", lambda: aws.terminate("i-00000001"), of_other),
    )
    for action, call, error in rows:
        if (action, code) == ("TerminateInstances", "UnauthorizedOperation"):
            continue  # whether the machine exists decides: the next test
        door.refuse_next(action, code)
        with pytest.raises(CloudError, match=code) as caught:
            call()
        assert caught.type is error, action
        assert door.calls()[action] == 1
    assert door.cloud.machines() == ()


def test_an_end_for_which_a_right_is_missing_succeeds_only_for_what_is_unknown(
    door: AwsDoor, aws: AwsProvider, request_for: Request, eventually: Eventually
) -> None:
    """A policy that judges by tags refuses the end of what EC2 does not know."""
    door.denied.add("TerminateInstances")
    aws.terminate("i-00000001")
    machine = aws.launch(request_for())
    eventually(lambda: is_up(aws, machine))
    with pytest.raises(CredentialsRefused, match="allow it in the policy"):
        aws.terminate(machine.provider_id)


def test_a_spot_role_that_is_missing_names_the_command_that_makes_it(
    door: AwsDoor, aws: AwsProvider, request_for: Request
) -> None:
    door.refuse_next("RunInstances", "AuthFailure.ServiceLinkedRoleCreationNotPermitted")
    with pytest.raises(SpotRefused, match="aws iam create-service-linked-role"):
        aws.launch(request_for(market="spot"))


@pytest.mark.parametrize("code", ["InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"])
def test_ending_what_is_unknown_succeeds(door: AwsDoor, aws: AwsProvider, code: str) -> None:
    door.refuse_next("TerminateInstances", code)
    aws.terminate("i-00000001")


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ({"zone": SOLD_OUT}, OutOfCapacity),
        ({"zone": OTHER_ZONE, "machine_type": GPU_TYPE}, MachineTypeUnsold),
        ({"zone": "eu-central-1d"}, LaunchRefused),
        ({"machine_type": "m7i.unheard-of"}, LaunchRefused),
    ],
)
def test_a_place_that_gives_nothing_says_why(
    door: AwsDoor,
    aws: AwsProvider,
    request_for: Request,
    place: dict[str, str],
    error: type[CloudError],
) -> None:
    with pytest.raises(error) as caught:
        aws.launch(request_for(**place))
    assert caught.type is error
    assert door.cloud.machines() == ()


@pytest.mark.parametrize("market", ["on_demand", "spot"])
def test_the_quota_of_a_market_is_told(
    door: AwsDoor, reach: Open, request_for: Request, market: str
) -> None:
    door.cloud.settings.quotas[market] = 1  # type: ignore[index]
    aws = reach()
    aws.launch(request_for(key="key-1", market=market))
    with pytest.raises(QuotaReached, match="Service Quotas"):
        aws.launch(request_for(key="key-2", market=market))


@given(
    code=st.sampled_from(["", "404", "500", *ERRORS]) | st.text(min_size=1),
    status=st.integers(0, 599),
)
def test_an_answer_that_may_not_be_of_aws_is_never_a_refusal(code: str, status: int) -> None:
    of_launch = error_of(code, status, "message", LaunchRefused)
    if code not in ERRORS and not (400 <= status < 500 and code and not code.isdigit()):
        assert type(of_launch) in (ProviderUnavailable, Throttled)
    of_other = error_of(code, status, "message")
    assert type(of_other) in (ProviderUnavailable, Throttled, CredentialsRefused)


# Answers that do not come, or not from AWS


@pytest.mark.parametrize("fault", [LostRequest(), LostResponse(), Garbage(), LateRequest(20.0)])
@pytest.mark.parametrize("prepaid", [60.0, 59.0])
def test_a_launch_repeated_after_any_trouble_makes_one_machine(
    door: AwsDoor,
    aws: AwsProvider,
    request_for: Request,
    eventually: Eventually,
    fault: Fault,
    prepaid: float,
) -> None:
    door.cloud.faults.next("launch", fault)
    with pytest.raises(ProviderUnavailable):
        aws.launch(request_for())
    assert door.calls()["RunInstances"] == 1
    door.cloud.clock.advance(30.0)
    machine = aws.launch(request_for(prepaid=prepaid))
    eventually(lambda: is_up(aws, machine))
    assert [one.launch_key for one in aws.list()] == ["key-1"]


TROUBLE = (LostRequest(), LostResponse(), Garbage(), LateRequest(20.0), Duplicate(5.0), None)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(TROUBLE),
            st.sampled_from([6000.0, 5999.0]),
            st.sampled_from([0.0, 3.0, 30.0]),
        ),
        max_size=6,
    )
)
def test_a_key_has_one_machine_after_any_trouble_with_its_launches(
    gate: Gate, reach: Open, request_for: Request, steps: list[tuple[Fault | None, float, float]]
) -> None:
    gate.door = make_door()
    cloud, aws = gate.door.cloud, reach()
    for fault, prepaid, pause in steps:
        if fault is not None:
            cloud.faults.next("launch", fault)
        with suppress(ProviderUnavailable):
            aws.launch(request_for(prepaid=prepaid))
        cloud.clock.advance(pause)
    cloud.clock.advance(30.0)
    machine = aws.launch(request_for(prepaid=6000.0))
    cloud.clock.advance(LAG)
    assert [one.provider_id for one in aws.list()] == [machine.provider_id]
    assert len(cloud.machines()) == 1


@pytest.mark.parametrize("status", [200, 403, 407, 500, 503])
@pytest.mark.parametrize("content", [PORTAL, b"<!DOCTYPE html><html><br></html>", b"", b"{}"])
def test_a_page_of_a_proxy_is_no_answer(
    door: AwsDoor, aws: AwsProvider, request_for: Request, status: int, content: bytes
) -> None:
    aws.launch(request_for())
    door.intruder = (status, "text/html", content)
    calls: tuple[Callable[[], object], ...] = (
        aws.list,
        lambda: aws.launch(request_for(key="key-2")),
        lambda: aws.terminate("i-00000001"),
        lambda: aws.account,
    )
    for call in calls:
        with pytest.raises(ProviderUnavailable):
            call()
    assert len(door.cloud.machines()) == 1


def test_a_cloud_that_does_not_listen_is_unavailable(
    aws_environment: None, request_for: Request
) -> None:
    told = entry(endpoint="http://127.0.0.1:9")
    aws = AwsProvider.open("aws-frankfurt", told, ControllerSettings())
    for call in (aws.list, lambda: aws.launch(request_for()), lambda: aws.traits and aws.account):
        with pytest.raises(ProviderUnavailable):
            call()


# Tokens, adoption and lists


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


def test_prices_are_those_of_the_dearest_zone_on_spot_and_of_the_list_on_demand(
    door: AwsDoor, aws: AwsProvider
) -> None:
    door.cloud.clock.advance(5000.0)
    now = EPOCH + timedelta(seconds=5000)
    found = {(one.item, one.market): one for one in aws.fetch_prices([TYPE, "m9.none"], now)}
    assert set(found) == {(TYPE, "on_demand"), (TYPE, "spot")}
    listed = found[TYPE, "on_demand"]
    assert (listed.price, listed.vcpus, listed.memory_gib) == (Decimal("0.2"), 2, 4)
    moment = door.cloud.clock.now()
    shares = [door.cloud.settings.spot.share(f"{TYPE}@{zone}+spot", moment) for zone in SUBNETS]
    assert found[TYPE, "spot"].price == round(Decimal(0.2 * float(max(shares))), 6)
    assert {one.as_of for one in found.values()} == {now}
    assert {(one.provider, one.region) for one in found.values()} == {("aws", "eu-central-1")}
    assert judge_update(found.values(), {}, now).refused == ()


def test_prices_on_spot_are_kept_where_the_list_may_not_be_read(
    door: AwsDoor, aws: AwsProvider
) -> None:
    door.denied.add("GetProducts")
    told = aws.fetch_prices([TYPE], EPOCH)
    assert next(told).market == "spot"
    with pytest.raises(CredentialsRefused, match="GetProducts"):
        next(told)


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InternalError"])
def test_a_cloud_that_does_not_tell_prices_now_is_asked_again_later(
    door: AwsDoor, aws: AwsProvider, code: str
) -> None:
    for action in ("DescribeSpotPriceHistory", "GetProducts"):
        door.refuse_next(action, code)
        with pytest.raises((Throttled, ProviderUnavailable)):
            list(aws.fetch_prices([TYPE], EPOCH))


@pytest.mark.parametrize(
    "product", ["{", "[]", "{}", '{"product": {"attributes": {"vcpu": "x", "memory": "1"}}}']
)
def test_a_price_list_that_cannot_be_read_tells_no_price(product: str) -> None:
    with pytest.raises(ProviderUnavailable, match="cannot be read"):
        list(on_demand_prices("eu-central-1", TYPE, [product], EPOCH))


# A second opinion


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
