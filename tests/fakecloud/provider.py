"""FakeCloudProvider, machines of a fake cloud over HTTP."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from service.clouds.provider import CloudTraits, EndReason, Instance, InstanceState, LaunchRequest
from service.errors import (
    CloudError,
    CredentialsRefused,
    LaunchKeyUsed,
    LaunchRefused,
    OutOfCapacity,
    ProviderUnavailable,
    QuotaReached,
    Throttled,
)
from service.offers import SeenPrice
from tests.fakecloud.cloud import Page
from tests.fakecloud.machine import Description, Reason, Request
from tests.fakecloud.refusal import Refusal

LAUNCHED, PAGE = TypeAdapter(tuple[Description, ...]), TypeAdapter(Page)
INSTALLATION, JOB, KEY = "scavenger-installation", "scavenger-job", "scavenger-launch-key"
SUPERVISOR_COMMAND = ("python", "-m", "worker_agent.supervisor")
END_REASONS = {
    Reason.SOLD_OUT: EndReason.SOLD_OUT,
    Reason.INTERRUPTED: EndReason.TAKEN,
    Reason.FAILED: EndReason.FAILED,
}
MEANING: dict[str, type[CloudError]] = {
    "InsufficientInstanceCapacity": OutOfCapacity,
    "InstanceLimitExceeded": QuotaReached,
    "RequestLimitExceeded": Throttled,
    "UnauthorizedOperation": CredentialsRefused,
    "IdempotentInstanceTerminated": LaunchKeyUsed,
    "InvalidParameterValue": LaunchRefused,
    "MalformedRequest": LaunchRefused,
}


class FakeCloudProvider:
    """Start machines in a fake cloud; the launch key is the cloud's client token.

    Args:
        url: Where the cloud is served.
        installation: Whose machines these are; those of others are not seen.
        zone: Its zones, a letter each.
        pause: Seconds a change of machines takes, as far as people know.
        lag: Seconds for which its lists may lag behind.
        boot: Longest seconds until a machine's own clock starts.
        minimum: Seconds that are billed at least.
        patience: Seconds of real time to wait for an answer.
        transport: The way to the cloud; None for the network.
    """

    name = "fake"

    def __init__(
        self,
        url: str,
        installation: str,
        *,
        machine_type: str = "small",
        zone: str = "a",
        pause: float = 30.0,
        lag: float = 0.0,
        boot: float = 60.0,
        minimum: float = 0.0,
        patience: float = 5.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(
            base_url=f"{url}/cloud/",
            timeout=patience,
            trust_env=False,
            verify=False,
            transport=transport,
        )
        self._installation = installation
        self.traits = CloudTraits(
            zones=tuple(zone),
            machine_type=machine_type,
            resize_seconds=pause,
            max_list_lag_seconds=lag,
            max_boot_seconds=boot,
            minimum_billed_seconds=minimum,
        )

    @property
    def account(self) -> str:
        """Whose machines it lists."""
        return self._installation

    def launch(self, request: LaunchRequest) -> Instance:
        """Start a machine, or return the one this launch key already started.

        Raises:
            OutOfCapacity: The zone has no such machine now.
            QuotaReached: This account may have no more.
            LaunchRefused: The key's machine is ending or gone, or the request is wrong.
        """
        try:
            launched = self._ask("launch", token=request.launch_key, request=self._of(request))
        except Refusal as refusal:
            if refusal.code == "IdempotentParameterMismatch":
                return self._adopt(request.launch_key)
            raise _translate(refusal) from refusal
        (machine,) = _understand(LAUNCHED, launched)
        return _instance(machine)

    def list(self) -> tuple[Instance, ...]:
        """Return every machine of this installation that the cloud shows now."""
        return tuple(
            _instance(machine) for machine in self._shown() if {KEY, JOB} <= machine.labels.keys()
        )

    def spot_prices(self, zone: str, machine_type: str, since: datetime) -> tuple[SeenPrice, ...]:
        """Return nothing: its clock is not the controller's."""
        return ()

    def terminate(self, provider_id: str) -> None:
        """Order the end of a machine."""
        try:
            self._ask("terminate", machine=provider_id)
        except Refusal as refusal:
            if refusal.code != "InvalidInstanceID.NotFound":
                raise ProviderUnavailable(str(refusal)) from refusal

    def forget(self, provider_id: str) -> None:
        """Do nothing for a machine that is gone: the cloud forgets it by itself."""
        shown = {instance.provider_id: instance.state for instance in self.list()}
        if shown.get(provider_id, InstanceState.GONE) is not InstanceState.GONE:
            raise ValueError(f"{provider_id} is not gone")

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def _of(self, request: LaunchRequest) -> Request:
        ours = {INSTALLATION: self._installation, JOB: request.job, KEY: request.launch_key}
        return Request(
            machine_type=request.offer.machine_type,
            zone=request.offer.zone,
            market=request.offer.market,
            command=SUPERVISOR_COMMAND,
            environment=request.boot.environment,
            labels={**request.labels, **ours},
            longest_run=request.max_run_seconds if math.isfinite(request.max_run_seconds) else None,
        )

    def _adopt(self, launch_key: str) -> Instance:
        """Return the machine that a launch with other parameters made.

        The prepaid seconds in the environment are other ones whenever a launch is repeated.
        """
        found = next((one for one in self.list() if one.launch_key == launch_key), None)
        if found is None:
            raise ProviderUnavailable(f"{launch_key} was launched, but is not shown yet")
        return found

    def _shown(self) -> Iterator[Description]:
        after: int | None = 0
        while after is not None:
            try:
                told = self._ask("list", after=after, labels={INSTALLATION: self._installation})
            except Refusal as refusal:
                raise ProviderUnavailable(str(refusal)) from refusal
            page = _understand(PAGE, told)
            yield from page.machines
            after = page.after

    def _ask(self, what: str, **arguments: Any) -> bytes:
        """Return the cloud's answer.

        Raises:
            Refusal: It said no.
            ProviderUnavailable: It said nothing that can be understood.
        """
        try:
            reply = self._http.post(what, content=to_json(arguments))
        except httpx.TransportError as error:
            raise ProviderUnavailable(f"{what}: {error!r}") from error
        if reply.is_success:
            return reply.content
        try:
            told = from_json(reply.content)
        except ValueError as error:
            raise ProviderUnavailable(f"{what}: answered {reply.status_code}") from error
        raise Refusal(told["code"], told["message"])


def _understand(kind: TypeAdapter[Any], content: bytes) -> Any:
    try:
        return kind.validate_json(content)
    except ValidationError as error:
        raise ProviderUnavailable(f"the cloud's answer is not understood: {error}") from error


def _translate(refusal: Refusal) -> CloudError:
    return MEANING.get(refusal.code, ProviderUnavailable)(str(refusal))


def _instance(machine: Description) -> Instance:
    labels = dict(machine.labels)
    del labels[INSTALLATION]
    return Instance(
        provider_id=machine.id,
        launch_key=labels.pop(KEY),
        job=labels.pop(JOB),
        state=InstanceState(machine.state),
        zone=machine.zone,
        labels=labels,
        reason=END_REASONS.get(machine.reason) if machine.reason is not None else None,
    )
