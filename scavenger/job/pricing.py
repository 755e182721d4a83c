"""Prices in the job document, from one price per worker to spot, servers and prices per GiB.

A part of ``JobSpec``, which hands the ``PriceModel`` it stands for to ``decide``.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, assert_never

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator, Strict

from scavenger.cluster import MemoryModel
from scavenger.job.fields import (
    Duration,
    PricePerHour,
    SpecModel,
    closest_name,
    format_price,
    read_price,
    require_nonzero,
    require_value,
)
from scavenger.pricing import (
    Interruptions,
    MachinePrice,
    PriceModel,
    ResourcePrice,
    ServerPrice,
    WorkerPrice,
    on_demand_price_model,
)

PositivePricePerHour = Annotated[PricePerHour, AfterValidator(require_nonzero)]
MemoryGib = Annotated[float, Strict(), Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class ServersSpec(SpecModel):
    """Parameter servers that are paid beside the workers.

    Attributes:
        count: How many.
        per_hour: Dollars of one for one hour.
    """

    count: Annotated[int, Strict(), Field(ge=1, le=1024)] = Field(examples=[2])
    per_hour: PositivePricePerHour = Field(examples=["0.13402 USD/h"])


class InterruptionsSpec(SpecModel):
    """How often spot machines are taken back, and what that takes.

    Attributes:
        per_hour: Interruptions of one machine per hour.
        restart: Seconds without progress each time.
    """

    per_hour: Annotated[float, Strict(), Field(ge=0, le=3600, allow_inf_nan=False)] = Field(
        examples=[0.05]
    )
    restart: Duration = Field(examples=["2m"])


class MemorySpec(SpecModel):
    """Memory one worker needs, a line in its local batch.

    Attributes:
        fixed_gib: GiB for weights, optimizer and program.
        gib_per_sample: GiB per sample of the local batch.
    """

    fixed_gib: MemoryGib = Field(examples=[2])
    gib_per_sample: MemoryGib = Field(examples=[0.01])


class PriceTerms(SpecModel):
    """What every tariff may say besides its rate.

    Attributes:
        quantum: Seconds that are billed at once; None bills exactly.
        servers: Parameter servers paid beside the workers; None leaves them out.
        interruptions: Of spot machines; None on demand.
    """

    quantum: Annotated[Duration | None, BeforeValidator(require_value)] = Field(
        None, examples=["1h"]
    )
    servers: Annotated[ServersSpec | None, BeforeValidator(require_value)] = Field(
        None, examples=["{count: 2, per_hour: 0.13402 USD/h}"]
    )
    interruptions: Annotated[InterruptionsSpec | None, BeforeValidator(require_value)] = Field(
        None, examples=["{per_hour: 0.05, restart: 2m}"]
    )


class MachinePriceSpec(PriceTerms):
    """A price per machine, each of which hosts one worker.

    Attributes:
        per_hour: Dollars of one worker's machine for one hour.
    """

    per_hour: PositivePricePerHour = Field(examples=["0.13402 USD/h"])


class ResourcePriceSpec(PriceTerms):
    """Machines of custom size, whose memory follows the batch (V-D).

    Attributes:
        per_vcpu_hour: Dollars of one vCPU for one hour.
        per_gib_hour: Dollars of one GiB for one hour.
        vcpus: vCPUs of one worker.
        memory: GiB one worker needs.
    """

    per_vcpu_hour: PositivePricePerHour = Field(examples=["0.0237 USD/h"])
    per_gib_hour: PositivePricePerHour = Field(examples=["0.0032 USD/h"])
    vcpus: Annotated[float, Strict(), Field(gt=0, le=10_000, allow_inf_nan=False)] = Field(
        examples=[4]
    )
    memory: MemorySpec = Field(examples=["{fixed_gib: 2, gib_per_sample: 0.01}"])


PriceSpec = Decimal | MachinePriceSpec | ResourcePriceSpec

_PRICE_EXAMPLES = (
    "0.13402 USD/h or {per_hour: 0.13402 USD/h, quantum: 1h} for each machine, "
    "or {per_vcpu_hour: 0.0237 USD/h, per_gib_hour: 0.0032 USD/h, vcpus: 4, "
    "memory: {fixed_gib: 2, gib_per_sample: 0.01}}"
)
_RESOURCE_KEYS = ("per_vcpu_hour", "per_gib_hour", "vcpus", "memory")


def _read_price_spec(value: object) -> PriceSpec:
    if isinstance(value, Mapping):
        return price_spec_type(value).model_validate(value)
    return require_nonzero(read_price(value))


def price_spec_type(value: Mapping[str, object]) -> type[MachinePriceSpec | ResourcePriceSpec]:
    """Tell which tariff is meant by the keys that are there, misspelt ones last."""
    of_resource = next((key for key in _RESOURCE_KEYS if key in value), None)
    if "per_hour" in value and of_resource:
        raise ValueError(f"per_hour and {of_resource} exclude each other: write {_PRICE_EXAMPLES}")
    if "per_hour" in value:
        return MachinePriceSpec
    if of_resource:
        return ResourcePriceSpec
    for key in list(value)[:10]:
        meant = closest_name(key, [*_RESOURCE_KEYS, *MachinePriceSpec.model_fields])
        if meant in _RESOURCE_KEYS:
            return ResourcePriceSpec
        if meant == "per_hour":
            return MachinePriceSpec
    raise ValueError(f"says neither per_hour nor per_vcpu_hour: write {_PRICE_EXAMPLES}")


def _write_price_spec(tariff: PriceSpec) -> str | dict[str, Any]:
    if isinstance(tariff, Decimal):
        return format_price(tariff)
    return tariff.model_dump(mode="json", exclude_none=True)


PriceField = Annotated[
    PriceSpec,
    PlainValidator(
        _read_price_spec, json_schema_input_type=str | MachinePriceSpec | ResourcePriceSpec
    ),
    PlainSerializer(_write_price_spec, return_type=str | dict[str, Any], when_used="json"),
]


def price_model_of(tariff: PriceSpec) -> PriceModel:
    """Return what a tariff makes configurations cost (Eq. 5, V-D)."""
    if isinstance(tariff, Decimal):
        return on_demand_price_model(float(tariff))
    servers, interruptions = tariff.servers, tariff.interruptions
    return PriceModel(
        _worker_price_of(tariff),
        tariff.quantum or 0.0,
        None if servers is None else ServerPrice(servers.count, float(servers.per_hour)),
        None
        if interruptions is None
        else Interruptions(interruptions.per_hour, interruptions.restart),
    )


def priced_servers(tariff: PriceSpec) -> ServersSpec | None:
    """Return the parameter servers a tariff pays, if it names any."""
    return None if isinstance(tariff, Decimal) else tariff.servers


def _worker_price_of(tariff: MachinePriceSpec | ResourcePriceSpec) -> WorkerPrice:
    match tariff:
        case MachinePriceSpec(per_hour=per_hour):
            return MachinePrice(float(per_hour))
        case ResourcePriceSpec(memory=memory):
            return ResourcePrice(
                float(tariff.per_vcpu_hour),
                float(tariff.per_gib_hour),
                tariff.vcpus,
                MemoryModel(memory.fixed_gib, memory.gib_per_sample),
            )
        case _:
            assert_never(tariff)


def worker_price_per_hour(tariff: PriceSpec, local_batch: int) -> Decimal:
    """Dollars per hour of one worker's machine, large enough for a local batch in samples.

    >>> worker_price_per_hour(Decimal("0.13402"), local_batch=64)
    Decimal('0.13402')
    """
    match tariff:
        case Decimal():
            return tariff
        case MachinePriceSpec(per_hour=per_hour):
            return per_hour
        case ResourcePriceSpec(memory=memory):
            per_sample, fixed = (
                exact_decimal(memory.gib_per_sample),
                exact_decimal(memory.fixed_gib),
            )
            gib = fixed + per_sample * local_batch
            return tariff.per_vcpu_hour * exact_decimal(tariff.vcpus) + tariff.per_gib_hour * gib
        case _:
            assert_never(tariff)


def exact_decimal(value: float) -> Decimal:
    """Return a number as it was written.

    >>> exact_decimal(0.1)
    Decimal('0.1')
    """
    return Decimal(repr(value))
