"""Google Cloud: machines of Compute Engine in one project and region.

A machine is named after its launch key, so a zone never holds two of one key. The name is free
again once its machine is gone: a key that is launched after that makes a second machine, after the
first and never beside it. The SDK makes one attempt per call, since the reconciler repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID, uuid5

from scavenger.schemas.prices import PriceView
from service.clouds.google_compute import ComputeEngine
from service.clouds.google_entry import GoogleEntry
from service.clouds.google_errors import operation_error, unknown_error, zones_with_room
from service.clouds.google_machine import (
    GOOGLE_JOB_LABEL,
    GOOGLE_NAME_PREFIX,
    instance_of,
    machine_of,
)
from service.clouds.google_prices import newest_spot_price
from service.clouds.google_rights import check_google_rights
from service.clouds.google_store import GoogleObjectStore
from service.clouds.labels import OWNER_LABEL, SIGNATURE_LABEL
from service.clouds.object_store import ObjectStore
from service.clouds.provider import CloudTraits, Instance, InstanceState, LaunchRequest
from service.clouds.rights import Right
from service.errors import (
    CloudError,
    LaunchKeyUsed,
    LaunchRefused,
    ProviderUnavailable,
    Throttled,
)
from service.offers import SeenPrice
from service.prices import PricedRegion
from service.settings import Settings

_REQUEST_NAMESPACE = UUID("0f4bb1c8-6a53-4e1f-9d0c-2f6f1f0d7a35")
# After so many seconds a call begins no further request, so that none takes longer than half a
# minute.
_OPERATION_SECONDS, _LIST_SECONDS, _POLL_SECONDS = 18.0, 20.0, 0.5


class GoogleProvider:
    """Start machines in the zones of one region.

    Args:
        name: Name of the entry in the clouds file.
        wait: Waits for so many seconds.
        stopwatch: Returns seconds.
        api: Calls Google; None makes one.
    """

    Entry = GoogleEntry

    def __init__(
        self,
        name: str,
        entry: GoogleEntry,
        *,
        wait: Callable[[float], None] = time.sleep,
        stopwatch: Callable[[], float] = time.monotonic,
        api: ComputeEngine | None = None,
    ) -> None:
        self.name = name
        self._api = api or ComputeEngine(name, entry)
        self._entry, self._wait, self._stopwatch = entry, wait, stopwatch
        self.object_store: ObjectStore | None = None
        if entry.checkpoints is not None:
            self.object_store = GoogleObjectStore(entry.checkpoints)
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
        began, zone, what = self._stopwatch(), request.offer.zone, f"launch {request.launch_key}"
        machine, request_id = machine_of(self._entry, request), self._request_id(request.launch_key)
        operation = self._api.insert(zone, machine, str(request_id), what)
        if operation is None:
            return self._adopt(request)
        # What fails from here on proves nothing: the machine may exist.
        while operation.status.name != "DONE":
            if self._stopwatch() - began > _OPERATION_SECONDS:
                raise ProviderUnavailable(f"{what}: {operation.name} in {zone} is not done yet")
            self._wait(_POLL_SECONDS)
            operation = self._api.poll(zone, operation.name, what)
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
            for page in self._api.pages(zone):
                found += [instance_of(shown, zone) for shown in page]
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
            try:
                history = self._api.price_history(machine_type)
            except CloudError as error:
                failure = error
                continue
            yield from newest_spot_price(self._entry.region, machine_type, history, now)
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
                if self._api.delete(zone, provider_id):
                    return
            except CloudError as error:
                failure = error  # another zone may still know it
        if failure is not None:
            raise failure

    def forget(self, provider_id: str) -> None:
        """Do nothing for a machine that is gone: Google keeps no record of it."""
        zones, what = self._zones_to_search(provider_id), f"look for {provider_id}"
        if any(self._api.find(zone, provider_id, what) is not None for zone in zones):
            raise ValueError(f"{provider_id} is not gone")
        self._zone_of.pop(provider_id, None)

    def check_rights(self, owner: str) -> Iterator[Right]:
        """Yield the permissions that the entry needs; Google judges by no label."""
        return check_google_rights(self._entry, self._resolve_image())

    def close(self) -> None:
        """Give the connections back."""
        self._api.close()

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
                told += zones_with_room(detail.error_info.metadatas)
        status = operation.http_error_status_code or None
        failure = operation_error(codes, status, f"launch {launch_key}: {'; '.join(told)}")
        if isinstance(failure, Throttled):
            self._failed_attempts[launch_key] = self._failed_attempts.get(launch_key, 0) + 1
        return failure

    def _adopt(self, request: LaunchRequest) -> Instance:
        """Return the machine that has the name, if this installation launched it."""
        name, zone = GOOGLE_NAME_PREFIX + request.launch_key, request.offer.zone
        what = f"launch {request.launch_key}"
        shown = self._api.find(zone, name, what, unknown_error)
        if shown is None:
            # For an hour Google would show the operation again that made it, and the job wait.
            raise LaunchKeyUsed(f"the machine of {request.launch_key} is gone")
        ours = {**request.labels, GOOGLE_JOB_LABEL: request.job}
        for label in (OWNER_LABEL, SIGNATURE_LABEL, GOOGLE_JOB_LABEL):
            if shown.labels.get(label) != ours.get(label):
                raise LaunchRefused(
                    f"{name} in {zone} was not launched by this installation for {request.job}: "
                    f"its label {label} is another one"
                )
        instance = instance_of(shown, zone)
        if instance.state in (InstanceState.ENDING, InstanceState.STOPPED):
            raise LaunchKeyUsed(f"the machine of {request.launch_key} is {instance.state.value}")
        self._failed_attempts.pop(request.launch_key, None)
        self._zone_of[instance.provider_id] = zone
        return instance

    @cached_property
    def _all_zones(self) -> tuple[str, ...]:
        """Those of the entry, then the others of the region.

        A zone that was taken out of the entry may still hold machines.
        """
        return tuple(dict.fromkeys((*self._entry.zones, *sorted(self._api.zones()))))

    def _zones_to_search(self, provider_id: str) -> tuple[str, ...]:
        known = self._zone_of.get(provider_id)
        return self._all_zones if known is None else (known,)

    def _resolve_image(self) -> str:
        """Return the newest image of a family, or the family itself while Google does not say.

        An insert accepts both, and tells what is wrong with either.
        """
        path = self._entry.image
        _, project, _, _, kind, *family = path.split("/")
        if kind != "family":
            return path
        try:
            image = self._api.newest_image(project, family[0])
        except CloudError:
            return path
        return f"projects/{project}/global/images/{image}"
