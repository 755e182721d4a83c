"""What EC2 refuses, and answers that do not come or are not of AWS."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.clouds.aws import AwsProvider
from service.clouds.aws_errors import error_of
from service.errors import (
    CloudError,
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
from service.settings import Settings as ControllerSettings
from tests.conformance.aws.rental import (
    GPU_TYPE,
    LAG,
    OTHER_ZONE,
    SOLD_OUT,
    Gate,
    Open,
    entry,
    make_door,
)
from tests.conformance.clouds import Eventually, Request, is_up
from tests.fakecloud.ec2_door import AwsDoor
from tests.fakecloud.faults import Duplicate, Fault, Garbage, LateRequest, LostRequest, LostResponse

PORTAL = b"<html><head><title>Welcome</title></head><body>Please sign in</body></html>"

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
