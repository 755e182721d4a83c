"""What the Google provider makes of refusals, broken connections and slow operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from service.clouds.google import GoogleProvider
from service.clouds.google_entry import GoogleEntry
from service.errors import (
    CloudError,
    CredentialsRefused,
    LaunchKeyUsed,
    LaunchRefused,
    MachineTypeUnsold,
    OutOfCapacity,
    ProviderUnavailable,
    QuotaReached,
    Throttled,
)
from tests.conformance.clouds import Eventually, Request, state
from tests.conformance.google.rental import (
    ENTRY,
    GCE_TYPE,
    ZONE,
    Reach,
    asked,
    google_cloud,
    ids,
)
from tests.fakecloud.faults import (
    Duplicate,
    Fault,
    Garbage,
    LateRequest,
    LostRequest,
    LostResponse,
    Refused,
)
from tests.fakecloud.google_door import GoogleDoor, GoogleManners
from tests.fakecloud.http_server import Answer, HttpRequest, HttpServer


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", OutOfCapacity),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", OutOfCapacity),
        ("RESOURCE_POOL_EXHAUSTED", OutOfCapacity),
        ("GPU_STOCKOUT", OutOfCapacity),
        ("UNSUPPORTED_OPERATION", OutOfCapacity),
        ("A_CODE_THAT_IS_NOT_KNOWN", OutOfCapacity),
        ("QUOTA_EXCEEDED", QuotaReached),
        ("RESOURCE_OPERATION_RATE_EXCEEDED", Throttled),
        ("PERMISSIONS_ERROR", CredentialsRefused),
        ("RESOURCE_NOT_FOUND", LaunchRefused),
        ("401 authError", CredentialsRefused),
        ("403 forbidden", CredentialsRefused),
        ("403 accessNotConfigured", CredentialsRefused),
        ("403 quotaExceeded", QuotaReached),
        ("403 rateLimitExceeded", Throttled),
        ("403 userRateLimitExceeded", Throttled),
        ("429 RESOURCE_EXHAUSTED", Throttled),
        ("400 invalid", LaunchRefused),
        ("404 notFound", LaunchRefused),
        ("412 conditionNotMet", LaunchRefused),
        ("400 resourceNotReady", ProviderUnavailable),
        ("408 requestTimeout", ProviderUnavailable),
        ("500 backendError", ProviderUnavailable),
        ("502 badGateway", ProviderUnavailable),
        ("503 backendError", ProviderUnavailable),
    ],
)
def test_what_a_launch_that_google_refuses_raises_after_one_attempt(
    door: GoogleDoor, reach: Reach, request_for: Request, code: str, error: type[CloudError]
) -> None:
    door.cloud.faults.next("launch", Refused(code))
    with pytest.raises(error, match="key-1") as caught:
        reach().launch(request_for())
    assert type(caught.value) is error
    assert asked(door, "POST") == 1
    assert ids(door) == []


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("401 authError", CredentialsRefused),
        ("403 forbidden", CredentialsRefused),
        ("403 rateLimitExceeded", Throttled),
        ("429 RESOURCE_EXHAUSTED", Throttled),
        ("403 quotaExceeded", ProviderUnavailable),
        ("400 invalid", ProviderUnavailable),
        ("500 backendError", ProviderUnavailable),
        ("503 backendError", ProviderUnavailable),
    ],
)
@pytest.mark.parametrize("operation", ["list", "terminate"])
def test_what_a_list_or_an_end_that_google_refuses_raises_after_one_attempt(
    door: GoogleDoor,
    reach: Reach,
    request_for: Request,
    operation: Any,
    code: str,
    error: type[CloudError],
) -> None:
    cloud = reach()
    machine = cloud.launch(request_for())
    before = asked(door)
    door.cloud.faults.next(operation, Refused(code))
    with pytest.raises(error) as caught:
        cloud.list() if operation == "list" else cloud.terminate(machine.provider_id)
    assert type(caught.value) is error
    assert asked(door) - before - asked(door, path="/zones", method="GET") <= 1
    assert asked(door, "DELETE") == (operation == "terminate")


@pytest.mark.parametrize("operation", ["launch", "list", "terminate", "describe"])
@pytest.mark.parametrize("fault", [LostRequest(), LostResponse(), Garbage(), LateRequest(5.0)])
def test_what_nothing_is_known_of_is_repeated_and_makes_one_machine(
    door: GoogleDoor,
    reach: Reach,
    request_for: Request,
    eventually: Eventually,
    operation: Any,
    fault: Fault,
) -> None:
    cloud = reach()

    def repeat(call: Callable[[], Any]) -> Any:
        """Call until it succeeds; one call at most fails."""
        try:
            return call()
        except ProviderUnavailable:
            return call()

    door.cloud.faults.next(operation, fault)
    machine = repeat(lambda: cloud.launch(request_for()))
    assert repeat(lambda: cloud.launch(request_for())) == machine
    door.cloud.clock.advance(60.0)
    assert [one.provider_id for one in repeat(cloud.list)] == [machine.provider_id]
    repeat(lambda: cloud.terminate(machine.provider_id))
    eventually(lambda: state(cloud, machine) is None)
    assert len(ids(door)) == 1
    assert not door.cloud.faults.unfired()


@pytest.mark.parametrize("code", ["401 authError", "403 forbidden", "404 notFound", "429 slow"])
@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_after_an_accepted_insert_no_refusal_is_certain(
    door: GoogleDoor, reach: Reach, request_for: Request, code: str, seconds: float
) -> None:
    # An operation that is done at once is not asked for: then the machine itself is refused.
    door.manners = GoogleManners(operation_seconds=seconds)
    door.cloud.faults.next("describe", Refused(code))
    # A machine that is not there was there: its key is used up, and what may be left is ended.
    is_missing = code.startswith("404") and not seconds
    with pytest.raises(LaunchKeyUsed if is_missing else ProviderUnavailable):
        reach().launch(request_for())
    assert len(ids(door)) == 1
    reach().launch(request_for())
    assert len(ids(door)) == 1


@pytest.mark.parametrize(("length", "said"), [(None, "not come from"), (40, "not understood")])
def test_an_answer_that_is_cut_off_or_a_proxys_is_not_believed(
    door: GoogleDoor, request_for: Request, length: int | None, said: str
) -> None:
    def answer(request: HttpRequest) -> Answer:
        status, media_type, content = door.answer(request)
        return status, media_type, content[:length] if length else b'{"status": "login first"}'

    with HttpServer(answer) as server:
        entry = GoogleEntry.model_validate({**ENTRY, "endpoint": server.url})
        cloud = GoogleProvider("google", entry)
        for call in (
            lambda: cloud.launch(request_for()),
            cloud.list,
            lambda: cloud.terminate("4000000000000000001"),
        ):
            with pytest.raises(ProviderUnavailable, match=said):
                call()
        cloud.close()
    assert len(ids(door)) == 1


def test_a_type_that_a_zone_does_not_have_is_not_sold_there(
    door: GoogleDoor, reach: Reach, request_for: Request
) -> None:
    with pytest.raises(MachineTypeUnsold, match="e2-unheard-of"):
        reach().launch(request_for(machine_type="e2-unheard-of"))
    assert ids(door) == []


def test_a_stockout_names_the_zones_that_have_room(reach: Reach, request_for: Request) -> None:
    door = GoogleDoor(
        google_cloud(capacity={f"{GCE_TYPE}@{ZONE}": 0}),
        GoogleManners(better_zones="europe-west3-c"),
    )
    with HttpServer(door.answer) as server:
        entry = GoogleEntry.model_validate({**ENTRY, "endpoint": server.url})
        cloud = GoogleProvider("google", entry, wait=door.cloud.clock.advance)
        with pytest.raises(OutOfCapacity, match="zones with room: europe-west3-c"):
            cloud.launch(request_for())
        cloud.close()


def test_a_launch_that_was_throttled_late_is_asked_anew_and_no_other_failure_is(
    door: GoogleDoor, reach: Reach, request_for: Request
) -> None:
    cloud = reach()
    door.cloud.faults.next("launch", Refused("RESOURCE_OPERATION_RATE_EXCEEDED"))
    with pytest.raises(Throttled):
        cloud.launch(request_for())
    assert cloud.launch(request_for()).launch_key == "key-1"
    door.cloud.faults.next("launch", Refused("ZONE_RESOURCE_POOL_EXHAUSTED"))
    for _ in range(2):
        with pytest.raises(OutOfCapacity):
            cloud.launch(request_for(key="key-2"))
    assert len(ids(door)) == 1


def test_an_operation_that_does_not_end_is_not_waited_for_and_proves_nothing(
    door: GoogleDoor, reach: Reach, request_for: Request
) -> None:
    door.manners = GoogleManners(operation_seconds=30.0)
    with pytest.raises(ProviderUnavailable, match="not done yet"):
        reach().launch(request_for())
    assert door.cloud.clock.now() <= 20.0
    assert reach().launch(request_for()).launch_key == "key-1"
    assert len(ids(door)) == 1


TROUBLES = (
    ("launch", LostRequest()),
    ("launch", LateRequest(20.0)),
    ("launch", LostResponse()),
    ("launch", Duplicate(20.0)),
    ("launch", Garbage()),
    ("launch", Refused("ZONE_RESOURCE_POOL_EXHAUSTED")),
    ("launch", Refused("RESOURCE_OPERATION_RATE_EXCEEDED")),
    ("launch", Refused("403 quotaExceeded")),
    ("describe", LostResponse()),
    ("describe", Refused("403 forbidden")),
    None,
)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(TROUBLES), st.sampled_from([0.0, 15.0, 700.0]), st.booleans()),
        min_size=2,
        max_size=8,
    )
)
@hypothesis_settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_a_key_never_has_two_machines_at_once_and_no_certain_refusal_made_one(
    request_for: Request, steps: list[tuple[tuple[Any, Fault] | None, float, bool]]
) -> None:
    door = GoogleDoor(google_cloud())
    with HttpServer(door.answer) as server:
        entry = GoogleEntry.model_validate({**ENTRY, "endpoint": server.url})
        clock, has_strays = door.cloud.clock, False
        cloud = GoogleProvider("google", entry, wait=clock.advance, stopwatch=clock.now)
        for trouble, pause, ends in steps:
            if trouble is not None:
                door.cloud.faults.next(*trouble)
                has_strays |= isinstance(trouble[1], LateRequest)
            before = ids(door)
            try:
                cloud.launch(request_for())
            except ProviderUnavailable:
                pass
            except CloudError:
                # What an earlier call asked may arrive while this one waits.
                assert ids(door) == before or has_strays
            clock.advance(pause)
            alive = [truth for truth in door.cloud.machines() if truth.gone_at is None]
            assert len(alive) <= 1
            if ends and alive:
                door.cloud.terminate(alive[0].description.id)
        cloud.close()
