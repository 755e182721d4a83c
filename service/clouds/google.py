"""Google Cloud: machines of Compute Engine in one project and region.

A machine is named after its launch key, so a zone never holds two of one key. The name is free
again once its machine is gone: a key that is launched after that makes a second machine, after the
first and never beside it. The SDK makes one attempt per call, since the reconciler repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID, uuid5

import requests
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.auth import exceptions as auth_exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1
from google.protobuf import json_format

from scavenger.schemas import PriceView
from service.clouds.google_entry import GoogleEntry
from service.clouds.google_errors import call_error, launch_error, operation_error
from service.clouds.google_machine import GOOGLE_JOB_LABEL, GOOGLE_NAME_PREFIX, machine_of
from service.clouds.google_prices import newest_spot_price, spot_price_question
from service.clouds.google_rights import check_google_rights
from service.clouds.google_store import GoogleObjectStore
from service.clouds.labels import OWNER_LABEL, SIGNATURE_LABEL
from service.clouds.object_store import ObjectStore
from service.clouds.provider import CloudTraits, Instance, InstanceState, LaunchRequest
from service.clouds.rights import Right
from service.errors import (
    CloudError,
    CredentialsRefused,
    LaunchKeyUsed,
    LaunchRefused,
    ProviderUnavailable,
    Throttled,
)
from service.offers import SeenPrice
from service.prices import PricedRegion
from service.settings import Settings

_REQUEST_NAMESPACE = UUID("0f4bb1c8-6a53-4e1f-9d0c-2f6f1f0d7a35")
# A time-out is of one request. After so many seconds a call begins no further one, so that none
# takes longer than half a minute.
_INSERT_SECONDS, _PAGE_SECONDS, _REQUEST_SECONDS = 8.0, 6.0, 4.0
_OPERATION_SECONDS, _LIST_SECONDS, _POLL_SECONDS = 18.0, 20.0, 0.5
_PAGE = 500
_INCOMPLETE = {"UNREACHABLE", "PARTIAL_SUCCESS", "LIST_OVERHEAD_QUOTA_EXCEED"}
# A status that is not listed belongs to a machine that exists: it counts as running.
_STATES: Mapping[str, InstanceState] = {
    "PROVISIONING": InstanceState.PENDING,
    "STAGING": InstanceState.PENDING,
    "PENDING": InstanceState.PENDING,
    "STOPPING": InstanceState.ENDING,
    "PENDING_STOP": InstanceState.ENDING,
    "DEPROVISIONING": InstanceState.ENDING,
    "SUSPENDING": InstanceState.ENDING,
    "STOPPED": InstanceState.STOPPED,
    "TERMINATED": InstanceState.STOPPED,
    "SUSPENDED": InstanceState.STOPPED,
}

_Translate = Callable[[list[str], int | None, str], CloudError]


class GoogleProvider:
    """Start machines in the zones of one region.

    Args:
        name: Name of the entry in the clouds file.
        wait: Waits for so many seconds.
        stopwatch: Returns seconds.
    """

    Entry = GoogleEntry

    def __init__(
        self,
        name: str,
        entry: GoogleEntry,
        *,
        wait: Callable[[float], None] = time.sleep,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._entry, self._wait, self._stopwatch = entry, wait, stopwatch
        self.object_store: ObjectStore | None = None
        if entry.checkpoints is not None:
            self.object_store = GoogleObjectStore(entry.checkpoints)
        self._opened: list[Any] = []
        self._zone_of: dict[str, str] = {}
        self._failed_attempts: dict[str, int] = {}

    @classmethod
    def open(cls, name: str, entry: GoogleEntry, settings: Settings) -> GoogleProvider:
        """Return the provider of an entry of the clouds file; asks nothing of Google."""
        return cls(name, entry)

    @property
    def account(self) -> str:
        """Project and region."""
        return f"{self._entry.project}/{self._entry.region}"

    @cached_property
    def traits(self) -> CloudTraits:
        """What the controller must know of Google; asks once for the image of a family."""
        return CloudTraits(
            zones=self._entry.zones,
            image=self._resolve_image(),
            machine_type=self._entry.machine_type,
            resize_seconds=60.0,
            max_list_lag_seconds=60.0,
            max_boot_seconds=300.0,
            list_interval_seconds=5.0,
            minimum_billed_seconds=60.0,
            is_rented=True,
            priced=PricedRegion(
                "google",
                self._entry.region,
                self._entry.disk_type,
                self._entry.disk_gib,
                self._entry.public_address,
            ),
        )

    def launch(self, request: LaunchRequest) -> Instance:
        """Start a machine, or return the one that has this launch key.

        Raises:
            OutOfCapacity: The zone has no such machine now; the message names zones that have.
            QuotaReached: The project may have no more in this region and market.
            LaunchRefused: The key's machine is ending, stopped or gone, another installation's
                machine has its name, or the request can never succeed.
        """
        began, zone = self._stopwatch(), request.offer.zone
        operation = self._insert(request)
        if operation is None:
            return self._adopt(request)
        # What fails from here on proves nothing: the machine may exist.
        with _translated(f"launch {request.launch_key}", _unknown):
            while operation.status != compute_v1.Operation.Status.DONE:
                if self._stopwatch() - began > _OPERATION_SECONDS:
                    raise ProviderUnavailable(f"{operation.name} in {zone} is not done yet")
                self._wait(_POLL_SECONDS)
                polled = self._operations.get(
                    project=self._entry.project,
                    zone=zone,
                    operation=operation.name,
                    retry=None,
                    timeout=_REQUEST_SECONDS,
                )
                operation = _known(polled, "compute#operation")
        if operation.error.errors:
            raise self._failure(request.launch_key, operation)
        return self._adopt(request)

    def list(self) -> tuple[Instance, ...]:
        """Return every machine that a controller launched, in all zones of the region.

        Zone by zone: an aggregated list leaves out a zone that is down and calls itself complete.

        Raises:
            CloudError: A zone does not answer.
        """
        deadline = self._stopwatch() + _LIST_SECONDS
        found: list[Instance] = []
        for zone in self._all_zones:
            for page in self._pages(zone):
                found += page
                if self._stopwatch() > deadline:
                    raise ProviderUnavailable(f"a list takes longer than {_LIST_SECONDS} s")
        self._zone_of = {instance.provider_id: instance.zone for instance in found}
        return tuple(found)

    def spot_prices(self, zone: str, machine_type: str, since: datetime) -> tuple[SeenPrice, ...]:
        """Return nothing: Google changes spot prices once a month, and tells them in a catalogue.

        A spot machine here is booked at the on-demand price, the most that it may cost.
        """
        return ()

    def fetch_prices(self, types: Collection[str], now: datetime) -> Iterator[PriceView]:
        """Yield prices on spot; a type that Google refuses, such as a misspelt one, stops none."""
        failure: CloudError | None = None
        for machine_type in sorted(types):
            question = spot_price_question(self._entry.project, self._entry.region, machine_type)
            try:
                with _translated(f"price of {machine_type}", call_error):
                    told = self._advice.capacity_history(
                        request=question, retry=None, timeout=_REQUEST_SECONDS
                    )
            except CloudError as error:
                failure = error
                continue
            yield from newest_spot_price(self._entry.region, machine_type, told.price_history, now)
        if failure is not None:
            raise failure

    def terminate(self, provider_id: str) -> None:
        """Order the end of a machine, stopped ones included.

        No request id is sent: repeating one after a delete that failed would only show that
        failure again, and the number of a machine is never used twice.
        """
        if not provider_id.isdecimal():
            return  # a name here would end the machine that has the name now
        failure: CloudError | None = None
        for zone in self._zones_to_search(provider_id):
            try:
                if self._delete(zone, provider_id):
                    return
            except CloudError as error:
                failure = error  # another zone may still know it
        if failure is not None:
            raise failure

    def forget(self, provider_id: str) -> None:
        """Do nothing for a machine that is gone: Google keeps no record of it."""
        if any(self._holds(zone, provider_id) for zone in self._zones_to_search(provider_id)):
            raise ValueError(f"{provider_id} is not gone")
        self._zone_of.pop(provider_id, None)

    def check_rights(self, owner: str) -> Iterator[Right]:
        """Yield the permissions that the entry needs; Google judges by no label."""
        return check_google_rights(self._entry, self._resolve_image())

    def close(self) -> None:
        """Give the connections back."""
        for client in self._opened:
            client.transport.close()

    # Clients are made at the first call, because they look for credentials when they are made: a
    # controller without them starts and rents in its other clouds.

    @cached_property
    def _instances(self) -> Any:
        return self._open(compute_v1.InstancesClient)

    @cached_property
    def _operations(self) -> Any:
        return self._open(compute_v1.ZoneOperationsClient)

    @cached_property
    def _zones(self) -> Any:
        return self._open(compute_v1.ZonesClient)

    @cached_property
    def _images(self) -> Any:
        return self._open(compute_v1.ImagesClient)

    @cached_property
    def _advice(self) -> Any:
        return self._open(compute_v1.AdviceClient)

    def _open(self, client: Callable[..., Any]) -> Any:
        try:
            opened = client(**_client_options(self._entry))
        except auth_exceptions.DefaultCredentialsError as error:
            raise CredentialsRefused(
                f"{self.name}: no credentials of Google are found on this computer: log in with "
                "'gcloud auth application-default login', or run the controller under a service "
                "account"
            ) from error
        self._opened.append(opened)
        return opened

    def _insert(self, request: LaunchRequest) -> Any:
        """Return the operation of an insert; None if the name is taken."""
        with _translated(f"launch {request.launch_key}", launch_error):
            try:
                operation = self._instances.insert_unary(
                    request=compute_v1.InsertInstanceRequest(
                        project=self._entry.project,
                        zone=request.offer.zone,
                        instance_resource=machine_of(self._entry, request),
                        request_id=str(self._request_id(request.launch_key)),
                    ),
                    retry=None,
                    timeout=_INSERT_SECONDS,
                )
            except exceptions.Conflict:
                return None
            return _known(operation, "compute#operation")

    def _request_id(self, launch_key: str) -> UUID:
        """Return the id under which Google answers repetitions with the first operation.

        An attempt that failed for a while only must not be shown again, so it gets another id.
        """
        first = uuid5(_REQUEST_NAMESPACE, launch_key)
        attempts = self._failed_attempts.get(launch_key, 0)
        return uuid5(first, str(attempts)) if attempts else first

    def _failure(self, launch_key: str, operation: Any) -> CloudError:
        """Return why an insert failed that had been accepted."""
        codes = [error.code for error in operation.error.errors]
        told = [error.message for error in operation.error.errors]
        for error in operation.error.errors:
            for detail in error.error_details:
                told += _better_zones(detail.error_info.metadatas)
        status = operation.http_error_status_code or None
        failure = operation_error(codes, status, f"launch {launch_key}: {'; '.join(told)}")
        if isinstance(failure, Throttled):
            self._failed_attempts[launch_key] = self._failed_attempts.get(launch_key, 0) + 1
        return failure

    def _adopt(self, request: LaunchRequest) -> Instance:
        """Return the machine that has the name, if this installation launched it."""
        name, zone = GOOGLE_NAME_PREFIX + request.launch_key, request.offer.zone
        with _translated(f"launch {request.launch_key}", _unknown):
            try:
                shown = self._instances.get(
                    project=self._entry.project,
                    zone=zone,
                    instance=name,
                    retry=None,
                    timeout=_REQUEST_SECONDS,
                )
            except exceptions.NotFound as error:
                # For an hour Google would show the operation again that made it, and the job wait.
                raise LaunchKeyUsed(f"the machine of {request.launch_key} is gone") from error
            _known(shown, "compute#instance")
        ours = {**request.labels, GOOGLE_JOB_LABEL: request.job}
        for label in (OWNER_LABEL, SIGNATURE_LABEL, GOOGLE_JOB_LABEL):
            if shown.labels.get(label) != ours.get(label):
                raise LaunchRefused(
                    f"{name} in {zone} was not launched by this installation for {request.job}: "
                    f"its label {label} is another one"
                )
        instance = _instance(shown, zone)
        if instance.state in (InstanceState.ENDING, InstanceState.STOPPED):
            raise LaunchKeyUsed(f"the machine of {request.launch_key} is {instance.state.value}")
        self._failed_attempts.pop(request.launch_key, None)
        self._zone_of[instance.provider_id] = zone
        return instance

    def _pages(self, zone: str) -> Iterator[Sequence[Instance]]:
        with _translated(f"list {zone}", call_error):
            pager = self._instances.list(
                request=compute_v1.ListInstancesRequest(
                    project=self._entry.project,
                    zone=zone,
                    filter=f"labels.{GOOGLE_JOB_LABEL}:*",
                    max_results=_PAGE,
                ),
                retry=None,
                timeout=_PAGE_SECONDS,
            )
            for page in pager.pages:
                _known(page, "compute#instanceList")
                if page.warning.code in _INCOMPLETE:
                    raise ProviderUnavailable(f"list {zone}: {page.warning.message}")
                ours = (shown for shown in page.items if shown.name.startswith(GOOGLE_NAME_PREFIX))
                yield [_instance(shown, zone) for shown in ours]

    @cached_property
    def _all_zones(self) -> tuple[str, ...]:
        """Those of the entry, then the others of the region.

        A zone that was taken out of the entry may still hold machines.
        """
        with _translated("list zones", call_error):
            shown = self._zones.list(
                request=compute_v1.ListZonesRequest(project=self._entry.project, max_results=_PAGE),
                retry=None,
                timeout=_REQUEST_SECONDS,
            )
            _known(shown, "compute#zoneList")
            zones = [zone.name for zone in shown if zone.name.startswith(f"{self._entry.region}-")]
        return tuple(dict.fromkeys((*self._entry.zones, *sorted(zones))))

    def _zones_to_search(self, provider_id: str) -> tuple[str, ...]:
        known = self._zone_of.get(provider_id)
        return self._all_zones if known is None else (known,)

    def _delete(self, zone: str, provider_id: str) -> bool:
        """Whether the zone knew the machine; its end is ordered then."""
        with _translated(f"terminate {provider_id}", call_error):
            try:
                operation = self._instances.delete_unary(
                    request=compute_v1.DeleteInstanceRequest(
                        project=self._entry.project,
                        zone=zone,
                        instance=provider_id,
                        no_graceful_shutdown=True,
                    ),
                    retry=None,
                    timeout=_REQUEST_SECONDS,
                )
            except exceptions.NotFound:
                return False
            _known(operation, "compute#operation")
            return True

    def _holds(self, zone: str, provider_id: str) -> bool:
        with _translated(f"look for {provider_id}", call_error):
            try:
                self._instances.get(
                    project=self._entry.project,
                    zone=zone,
                    instance=provider_id,
                    retry=None,
                    timeout=_REQUEST_SECONDS,
                )
            except exceptions.NotFound:
                return False
            return True

    def _resolve_image(self) -> str:
        """Return the newest image of a family, or the family itself while Google does not say.

        An insert accepts both, and tells what is wrong with either.
        """
        path = self._entry.image
        _, project, _, _, kind, *family = path.split("/")
        if kind != "family":
            return path
        try:
            with _translated(f"image {path}", call_error):
                image = self._images.get_from_family(
                    project=project, family=family[0], retry=None, timeout=_REQUEST_SECONDS
                )
                _known(image, "compute#image")
        except CloudError:
            return path
        return f"projects/{project}/global/images/{image.name}"


@contextmanager
def _translated(what: str, translate: _Translate) -> Iterator[None]:
    """Turn the SDK's exceptions into the controller's."""
    try:
        yield
    except exceptions.GoogleAPICallError as error:
        told = [error.message]
        for detail in error.details:
            told += _better_zones(detail.get("metadatas") or detail.get("metadata") or {})
        codes = [reported["reason"] for reported in error.errors if "reason" in reported]
        raise translate(codes, error.code, f"{what}: {'; '.join(told)}") from error
    except (auth_exceptions.TransportError, requests.RequestException) as error:
        raise ProviderUnavailable(f"{what}: no answer: {error!r}") from error
    except json_format.ParseError as error:
        raise ProviderUnavailable(f"{what}: the answer is not understood: {error}") from error
    except auth_exceptions.GoogleAuthError as error:
        if error.retryable:
            raise ProviderUnavailable(f"{what}: {error}") from error
        raise translate([], 401, f"{what}: {error}") from error


def _known(answer: Any, kind: str) -> Any:
    """Return an answer that Google wrote: the SDK reads any other JSON as one without members."""
    if answer.kind != kind:
        raise ProviderUnavailable(f"the answer did not come from Google: it is no {kind}")
    return answer


def _unknown(codes: list[str], status: int | None, message: str) -> CloudError:
    """Say that nothing is known, because an insert was accepted before."""
    return ProviderUnavailable(message)


def _better_zones(metadata: Mapping[str, str]) -> list[str]:
    zones = metadata.get("zonesAvailable")
    return [f"zones with room: {zones}"] if zones else []


def _instance(shown: Any, zone: str) -> Instance:
    labels = dict(shown.labels)
    job = labels.pop(GOOGLE_JOB_LABEL, "")
    return Instance(
        provider_id=str(shown.id),
        launch_key=shown.name.removeprefix(GOOGLE_NAME_PREFIX),
        job=job,
        state=_STATES.get(shown.status, InstanceState.RUNNING),
        zone=zone,
        labels=labels,
    )


def _client_options(entry: GoogleEntry) -> dict[str, Any]:
    """Return how clients reach Google, or a test's double of it on this computer."""
    if entry.endpoint is None:
        return {}
    endpoint = ClientOptions(api_endpoint=str(entry.endpoint).rstrip("/"))
    credentials = {"credentials": AnonymousCredentials()} if entry.is_local else {}
    return {"client_options": endpoint, **credentials}
