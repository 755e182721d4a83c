"""Amazon EC2: machines of one account in one region.

A launch key is the client token of its launch. EC2 keeps a token for a day or more after its
machine is gone, but per zone: the zone comes from the offer, which never changes for a key. The SDK
makes one attempt per call; the reconciler repeats. What EC2's error codes mean stands in
``aws_errors``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    LoginError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError

from scavenger.schemas.prices import PriceView
from service.clouds.aws_entry import AwsEntry
from service.clouds.aws_errors import (
    PARAMETER_MISMATCH,
    UNAUTHORIZED,
    UNKNOWN_INSTANCE,
    end_reason_of,
    error_of,
)
from service.clouds.aws_prices import (
    dearest_spot_prices,
    on_demand_prices,
    pricing_region,
    product_filters,
    spot_filters,
)
from service.clouds.aws_rights import DRY_RUN_VERDICTS, AwsVerdict, check_aws_rights
from service.clouds.aws_store import AwsObjectStore
from service.clouds.boot import render_boot_script
from service.clouds.labels import OWNER_LABEL
from service.clouds.object_store import ObjectStore
from service.clouds.provider import (
    LABEL_KEY_PATTERN,
    CloudTraits,
    Instance,
    InstanceState,
    LaunchRequest,
)
from service.clouds.rights import Right, dry_request
from service.errors import (
    CloudError,
    CloudsFileRefused,
    CredentialsRefused,
    LaunchKeyUsed,
    LaunchRefused,
    ProviderUnavailable,
    ServiceError,
)
from service.offers import Market, SeenPrice
from service.prices import PricedRegion
from service.settings import Settings

_JOB_TAG = "scavenger-job"
_SSM_PREFIX = "ssm:"
_TAGGED = ("instance", "volume", "network-interface")
_PAGE = 1000
_DISK_TYPE = "gp3"
_STATES = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.ENDING,
    "terminated": InstanceState.GONE,
    "stopping": InstanceState.STOPPED,
    "stopped": InstanceState.STOPPED,
}
# What the SDK raises before it sends anything, since it has no credentials to sign with.
_NO_CREDENTIALS = (
    CredentialRetrievalError,
    LoginError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    RuntimeError,  # botocore's own, for credentials that are still expired once renewed
    SSOError,
    TokenRetrievalError,
)
# One attempt: EC2 tells lack of capacity as a server error, which the SDK would repeat for seconds.
# A launch makes two requests at most but for the first of an image, and must end within 30 s.
_CONFIG = Config(
    connect_timeout=3,
    read_timeout=11,
    retries={"mode": "standard", "total_max_attempts": 1},
    max_pool_connections=32,
    user_agent_extra="scavenger",
)
# With a checksum of the SDK's choice, a machine would have to send one that it does not know.
_BUCKET_CONFIG = _CONFIG.merge(
    Config(
        signature_version="s3v4",
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "virtual", "us_east_1_regional_endpoint": "regional"},
    )
)
_LOCAL_BUCKET_CONFIG = _BUCKET_CONFIG.merge(Config(s3={"addressing_style": "path"}))


class AwsProvider:
    """Starts machines in the subnets of an entry of the clouds file.

    Args:
        clients: Of the SDK, by service. Clients may be shared by threads, sessions may not.
    """

    Entry = AwsEntry

    def __init__(self, name: str, entry: AwsEntry, clients: Mapping[str, Any]) -> None:
        self.name = name
        self._entry, self._ec2 = entry, clients["ec2"]
        self._ssm, self._sts, self._pricing = clients["ssm"], clients["sts"], clients["pricing"]
        self.object_store: ObjectStore | None = None
        if entry.checkpoints is not None:
            self.object_store = AwsObjectStore(clients["s3"], entry.checkpoints, _translated)
        self._root_devices: dict[str, str] = {}
        self._images: dict[str, str] = {}

    @classmethod
    def open(cls, name: str, entry: AwsEntry, settings: Settings) -> AwsProvider:
        """Return the provider of an entry of the clouds file; asks nothing of AWS."""
        with _translated(f"cloud {name}", CloudsFileRefused):
            return cls(name, entry, open_clients(entry))

    @cached_property
    def account(self) -> str:
        """Number of the account, and the region, once its subnets and image are known to exist."""
        with _translated(f"cloud {self.name}", CloudsFileRefused):
            try:
                answer = self._sts.get_caller_identity()
            except KeyError as error:  # what botocore raises for XML that STS did not write
                raise ProviderUnavailable("the answer did not come from AWS") from error
            self._check_subnets()
            self._image(self._entry.image)
        return f"{_member(answer, 'Account')}/{self._entry.region}"

    @property
    def traits(self) -> CloudTraits:
        """What the controller must know; asks nothing of AWS, which may be away at the start."""
        return CloudTraits(
            zones=tuple(self._entry.subnets),
            image=self._entry.image,
            machine_type=self._entry.machine_type,
            resize_seconds=90.0,
            max_list_lag_seconds=300.0,
            max_boot_seconds=300.0,
            list_interval_seconds=5.0,
            minimum_billed_seconds=60.0,
            is_rented=True,
            priced=PricedRegion(
                "aws",
                self._entry.region,
                _DISK_TYPE,
                self._entry.disk_gib,
                self._entry.public_address,
            ),
        )

    def launch(self, request: LaunchRequest) -> Instance:
        """Start a machine, or return the one that this launch key already started."""
        key, zone = request.launch_key, request.offer.zone
        with _translated(f"launch {key}", LaunchRefused):
            parameters = self._parameters(request)
            try:
                answer = self._ec2.run_instances(**parameters)
            except ClientError as error:
                if _code_of(error) != PARAMETER_MISMATCH:
                    raise
                return self._adopt(key, zone)
        (told,) = _member(answer, "Instances")
        return _usable(_instance(told))

    def list(self) -> tuple[Instance, ...]:
        """Return every machine in the region that carries an owner's label."""
        with _translated("list"):
            return tuple(self._describe("tag-key", OWNER_LABEL))

    def spot_prices(self, zone: str, machine_type: str, since: datetime) -> tuple[SeenPrice, ...]:
        """Return every price of the spot market since a moment, from the one at that moment on."""
        with _translated(f"spot prices of {machine_type} in {zone}"):
            pages = self._ec2.get_paginator("describe_spot_price_history").paginate(
                InstanceTypes=[machine_type],
                AvailabilityZone=zone,
                ProductDescriptions=["Linux/UNIX"],
                StartTime=since,
            )
            told = [one for page in pages for one in _member(page, "SpotPriceHistory")]
        found = [SeenPrice(one["Timestamp"], Decimal(one["SpotPrice"])) for one in told]
        return tuple(sorted(found, key=lambda seen: seen.since))

    def terminate(self, provider_id: str) -> None:
        """Order the end of one machine: an unknown id would fail a call for several."""
        with _translated(f"terminate {provider_id}"):
            try:
                answer = self._ec2.terminate_instances(InstanceIds=[provider_id])
            except ClientError as error:
                # A policy that grants ends by tags may refuse the end of what has no tags, since
                # EC2 does not know it: not yet or no longer.
                is_refused = _code_of(error) == UNAUTHORIZED
                if is_refused and any(self._describe("instance-id", provider_id)):
                    raise
                if not is_refused and _code_of(error) not in UNKNOWN_INSTANCE:
                    raise
                return
        _member(answer, "TerminatingInstances")

    def forget(self, provider_id: str) -> None:
        """Do nothing for a machine that is gone: EC2 forgets it by itself."""
        with _translated(f"forget {provider_id}"):
            shown = {one.state for one in self._describe("instance-id", provider_id)}
        if shown - {InstanceState.GONE}:
            raise ValueError(f"{provider_id} is not gone")

    def fetch_prices(self, types: Collection[str], now: datetime) -> Iterator[PriceView]:
        """Yield prices on spot, those of the dearest of the entry's zones, then those on demand."""
        with _translated("prices on spot"):
            pages = self._ec2.get_paginator("describe_spot_price_history").paginate(
                Filters=spot_filters(types), StartTime=now
            )
            history = [each for page in pages for each in _member(page, "SpotPriceHistory")]
        yield from dearest_spot_prices(self._entry.region, self._entry.subnets, history, now)
        for machine_type in sorted(types):
            with _translated(f"price of {machine_type}"):
                filters = product_filters(self._entry.region, machine_type)
                answer = self._pricing.get_products(
                    ServiceCode="AmazonEC2", FormatVersion="aws_v1", Filters=filters
                )
                products = _member(answer, "PriceList")
            yield from on_demand_prices(self._entry.region, machine_type, products, now)

    def check_rights(self, owner: str) -> Iterator[Right]:
        """Yield the rights that the entry needs, asked by dry runs."""

        def parameters_of(machine_type: str, zone: str, market: Market) -> Mapping[str, Any]:
            image = self._entry.image
            request = dry_request(self.name, zone, machine_type, market, image, owner)
            with _translated(f"look at {image}"):
                return self._parameters(request)

        def machines_of() -> Collection[Instance]:
            shown = self.list()
            return [one for one in shown if owner in ("", one.labels.get(OWNER_LABEL))]

        return check_aws_rights(self._entry, self._ask, parameters_of, machines_of)

    def _ask(self, service: str, call: str, **parameters: Any) -> AwsVerdict:
        clients = {"ec2": self._ec2, "pricing": self._pricing, "ssm": self._ssm, "sts": self._sts}
        with _translated(call):
            try:
                getattr(clients[service], call)(**parameters)
            except ClientError as error:
                if _code_of(error) not in DRY_RUN_VERDICTS:
                    raise
                return AwsVerdict(_code_of(error), error.response["Error"].get("Message", ""))
        return AwsVerdict()

    def _parameters(self, request: LaunchRequest) -> Mapping[str, Any]:
        """Return what EC2 is asked for: the same for a key, or its repetition is a mismatch."""
        entry, offer = self._entry, request.offer
        if offer.zone not in entry.subnets:
            raise LaunchRefused(
                f"cloud {self.name} has no subnet in zone {offer.zone}: add one to its entry"
            )
        tags = {
            "Name": f"scavenger-{request.launch_key}",
            _JOB_TAG: request.job,
            **request.labels,
        }
        image = self._image(offer.image)
        told = [{"Key": key, "Value": value} for key, value in tags.items()]
        disk = {
            "VolumeSize": entry.disk_gib,
            "VolumeType": _DISK_TYPE,
            "Encrypted": True,
            "DeleteOnTermination": True,
        }
        interface = {
            "DeviceIndex": 0,
            "SubnetId": entry.subnets[offer.zone],
            "Groups": [entry.security_group],
            "AssociatePublicIpAddress": entry.public_address,
            "DeleteOnTermination": True,
        }
        parameters: dict[str, Any] = {
            "ClientToken": request.launch_key,
            "MinCount": 1,
            "MaxCount": 1,
            "ImageId": image,
            "InstanceType": offer.machine_type,
            "UserData": render_boot_script(request.boot),
            "NetworkInterfaces": [interface],
            "BlockDeviceMappings": [{"DeviceName": self._root_device(image), "Ebs": disk}],
            "TagSpecifications": [{"ResourceType": kind, "Tags": told} for kind in _TAGGED],
            # The default of EC2 is to stop: the disk would be billed until a person looks.
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {
                "HttpEndpoint": "enabled",
                "HttpTokens": "required",
                "HttpPutResponseHopLimit": 1,
            },
        }
        if entry.instance_profile is not None:
            parameters["IamInstanceProfile"] = {"Name": entry.instance_profile}
        if offer.market == "spot":
            # Without MaxPrice: a bound below the on-demand price only adds interruptions.
            parameters["InstanceMarketOptions"] = {
                "MarketType": "spot",
                "SpotOptions": {
                    "SpotInstanceType": "one-time",
                    "InstanceInterruptionBehavior": "terminate",
                },
            }
        return parameters

    def _adopt(self, launch_key: str, zone: str) -> Instance:
        """Return the machine that the same key started with other parameters.

        A mismatch proves that it exists; so no error here is a certain refusal.
        """
        try:
            with _translated(f"look for {launch_key}"):
                found = tuple(self._describe("client-token", launch_key))
        except CloudError as error:
            raise ProviderUnavailable(f"{launch_key} was launched before, but {error}") from error
        same = [one for one in found if one.zone == zone]
        if not same:
            raise ProviderUnavailable(f"{launch_key} was launched before, but is not shown yet")
        return _usable(same[0])

    def _describe(self, name: str, value: str) -> Iterator[Instance]:
        pages = self._ec2.get_paginator("describe_instances").paginate(
            Filters=[{"Name": name, "Values": [value]}], PaginationConfig={"PageSize": _PAGE}
        )
        for page in pages:
            for reservation in _member(page, "Reservations"):
                yield from map(_instance, reservation["Instances"])

    def _image(self, image: str) -> str:
        """Return the image that a public parameter names now, once for as long as this runs.

        Should the name lead elsewhere when a launch is repeated, EC2 tells a mismatch, and the
        machine of the first attempt is adopted.
        """
        if image.startswith(_SSM_PREFIX) and image not in self._images:
            answer = self._ssm.get_parameter(Name=image.removeprefix(_SSM_PREFIX))
            self._images[image] = _member(answer, "Parameter")["Value"]
        return self._images.get(image, image)

    def _root_device(self, image: str) -> str:
        """Return the name under which an image has its disk; another name adds a second disk."""
        if image not in self._root_devices:
            found = _member(self._ec2.describe_images(ImageIds=[image]), "Images")
            if not found:
                raise LaunchRefused(f"image {image} does not exist in {self._entry.region}")
            self._root_devices[image] = found[0]["RootDeviceName"]
        return self._root_devices[image]

    def _check_subnets(self) -> None:
        """Raise CloudsFileRefused for a subnet that is in another zone than the entry says."""
        told = self._ec2.describe_subnets(SubnetIds=list(self._entry.subnets.values()))
        zones = {one["SubnetId"]: one["AvailabilityZone"] for one in _member(told, "Subnets")}
        for zone, subnet in self._entry.subnets.items():
            if zones.get(subnet) != zone:
                raise CloudsFileRefused(
                    f"cloud {self.name}: {subnet} is in zone {zones.get(subnet)}, not in {zone}: "
                    "correct its entry in the clouds file"
                )


def open_clients(entry: AwsEntry) -> Mapping[str, Any]:
    """Return the SDK's clients of an account in a region, by service."""
    endpoint = None if entry.endpoint is None else str(entry.endpoint)
    session = boto3.Session(profile_name=entry.profile, region_name=entry.region)
    clients = {
        service: session.client(service, region_name=region, endpoint_url=endpoint, config=_CONFIG)
        for service, region in (
            *((service, entry.region) for service in ("ec2", "ssm", "sts")),
            ("pricing", pricing_region(entry.region)),
        )
    }
    if entry.checkpoints is not None:
        place = entry.checkpoints.endpoint or entry.endpoint
        clients["s3"] = session.client(
            "s3",
            endpoint_url=None if place is None else str(place),
            config=_BUCKET_CONFIG if place is None else _LOCAL_BUCKET_CONFIG,
        )
    return clients


@contextmanager
def _translated(call: str, refusal: type[ServiceError] = ProviderUnavailable) -> Iterator[None]:
    """Turn the SDK's errors into the controller's; a wrong request becomes the refusal."""
    try:
        yield
    except ClientError as error:
        metadata = error.response.get("ResponseMetadata", {})
        message = error.response.get("Error", {}).get("Message", "")
        status = metadata.get("HTTPStatusCode", 0)
        raise error_of(_code_of(error), status, f"{call}: {message}", refusal) from error
    except _NO_CREDENTIALS as error:
        raise CredentialsRefused(f"{call}: the AWS SDK finds no credentials: {error}") from error
    except (BotoCoreError, ResponseParserError) as error:
        raise ProviderUnavailable(f"{call}: {error}") from error


def _code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _member(answer: Mapping[str, Any], name: str) -> Any:
    """Return a member that every true answer has, even when it is empty.

    botocore reads any XML, a proxy's page of status 200 too, and returns an answer without
    members: it would be taken for a list without machines.
    """
    if name not in answer:
        raise ProviderUnavailable(f"the answer has no {name}: it did not come from AWS")
    return answer[name]


def _usable(instance: Instance) -> Instance:
    """Return the machine of a launch, unless it has ended.

    Raises:
        LaunchRefused: It has, so its key is used up.
    """
    if instance.state in (InstanceState.ENDING, InstanceState.GONE):
        raise LaunchKeyUsed(f"the machine of launch key {instance.launch_key} has ended")
    return instance


def _instance(told: Mapping[str, Any]) -> Instance:
    """Return a machine; its key is its client token, which cannot be copied as a tag can."""
    tags = {one["Key"]: one["Value"] for one in told.get("Tags", ())}
    state = _STATES[told["State"]["Name"]]
    return Instance(
        provider_id=told["InstanceId"],
        launch_key=told.get("ClientToken", ""),
        job=tags.pop(_JOB_TAG, ""),
        state=state,
        zone=told["Placement"]["AvailabilityZone"],
        labels={key: value for key, value in tags.items() if LABEL_KEY_PATTERN.fullmatch(key)},
        reason=end_reason_of(told.get("StateReason", {}).get("Code")),
    )
