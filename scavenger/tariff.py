"""Tariff: what a person writes about prices, from one price per worker to spot and per GiB.

A part of ``JobSpec``, which hands the ``PriceModel`` it stands for to ``decide``.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, assert_never

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator, Strict

from scavenger.machine import MemoryModel
from scavenger.pricing import (
    Interruptions,
    PerMachine,
    PerResource,
    PriceModel,
    Rate,
    Servers,
    on_demand,
)
from scavenger.quantity import Duration, PricePerHour, format_price, read_price
from scavenger.section import Section, above_zero, nearest, present

Dollars = Annotated[PricePerHour, AfterValidator(above_zero)]
Gib = Annotated[float, Strict(), Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class ServersSpec(Section):
    """Parameter servers that are paid beside the workers.

    Attributes:
        count: How many.
        per_hour: Dollars of one for one hour.
    """

    count: Annotated[int, Strict(), Field(ge=1, le=1024)] = Field(examples=[2])
    per_hour: Dollars = Field(examples=["0.13402 USD/h"])


class InterruptionsSpec(Section):
    """How often spot machines are taken back, and what that takes.

    Attributes:
        per_hour: Interruptions of one machine per hour.
        restart: Seconds without progress each time.
    """

    per_hour: Annotated[float, Strict(), Field(ge=0, le=3600, allow_inf_nan=False)] = Field(
        examples=[0.05]
    )
    restart: Duration = Field(examples=["2m"])


class MemorySpec(Section):
    """Memory one worker needs, a line in its local batch.

    Attributes:
        fixed_gib: GiB for weights, optimizer and program.
        gib_per_sample: GiB per sample of the local batch.
    """

    fixed_gib: Gib = Field(examples=[2])
    gib_per_sample: Gib = Field(examples=[0.01])


class Terms(Section):
    """What every tariff may say besides its rate.

    Attributes:
        quantum: Seconds that are billed at once; None bills exactly.
        servers: Parameter servers paid beside the workers; None leaves them out.
        interruptions: Of spot machines; None on demand.
    """

    quantum: Annotated[Duration | None, BeforeValidator(present)] = Field(None, examples=["1h"])
    servers: Annotated[ServersSpec | None, BeforeValidator(present)] = Field(
        None, examples=["{count: 2, per_hour: 0.13402 USD/h}"]
    )
    interruptions: Annotated[InterruptionsSpec | None, BeforeValidator(present)] = Field(
        None, examples=["{per_hour: 0.05, restart: 2m}"]
    )


class MachineTariff(Terms):
    """A price per machine, each of which hosts one worker.

    Attributes:
        per_hour: Dollars of one worker's machine for one hour.
    """

    per_hour: Dollars = Field(examples=["0.13402 USD/h"])


class ResourceTariff(Terms):
    """Machines of custom size, whose memory follows the batch (V-D).

    Attributes:
        per_vcpu_hour: Dollars of one vCPU for one hour.
        per_gib_hour: Dollars of one GiB for one hour.
        vcpus: vCPUs of one worker.
        memory: GiB one worker needs.
    """

    per_vcpu_hour: Dollars = Field(examples=["0.0237 USD/h"])
    per_gib_hour: Dollars = Field(examples=["0.0032 USD/h"])
    vcpus: Annotated[float, Strict(), Field(gt=0, le=10_000, allow_inf_nan=False)] = Field(
        examples=[4]
    )
    memory: MemorySpec = Field(examples=["{fixed_gib: 2, gib_per_sample: 0.01}"])


Tariff = Decimal | MachineTariff | ResourceTariff

_TARIFFS = (
    "0.13402 USD/h or {per_hour: 0.13402 USD/h, quantum: 1h} for each machine, "
    "or {per_vcpu_hour: 0.0237 USD/h, per_gib_hour: 0.0032 USD/h, vcpus: 4, "
    "memory: {fixed_gib: 2, gib_per_sample: 0.01}}"
)
_RESOURCE_KEYS = ("per_vcpu_hour", "per_gib_hour", "vcpus", "memory")


def _read_tariff(value: object) -> Tariff:
    if isinstance(value, Mapping):
        return tariff_kind(value).model_validate(value)
    return above_zero(read_price(value))


def tariff_kind(value: Mapping[str, object]) -> type[MachineTariff | ResourceTariff]:
    """Tell which tariff is meant by the keys that are there, misspelt ones last."""
    of_resource = next((key for key in _RESOURCE_KEYS if key in value), None)
    if "per_hour" in value and of_resource:
        raise ValueError(f"per_hour and {of_resource} exclude each other: write {_TARIFFS}")
    if "per_hour" in value:
        return MachineTariff
    if of_resource:
        return ResourceTariff
    for key in list(value)[:10]:
        meant = nearest(key, [*_RESOURCE_KEYS, *MachineTariff.model_fields])
        if meant in _RESOURCE_KEYS:
            return ResourceTariff
        if meant == "per_hour":
            return MachineTariff
    raise ValueError(f"says neither per_hour nor per_vcpu_hour: write {_TARIFFS}")


def _write_tariff(tariff: Tariff) -> str | dict[str, Any]:
    if isinstance(tariff, Decimal):
        return format_price(tariff)
    return tariff.model_dump(mode="json", exclude_none=True)


TariffField = Annotated[
    Tariff,
    PlainValidator(_read_tariff, json_schema_input_type=str | MachineTariff | ResourceTariff),
    PlainSerializer(_write_tariff, return_type=str | dict[str, Any], when_used="json"),
]


def price_model(tariff: Tariff) -> PriceModel:
    """Return what a tariff makes configurations cost (Eq. 5, V-D)."""
    if isinstance(tariff, Decimal):
        return on_demand(float(tariff))
    servers, interruptions = tariff.servers, tariff.interruptions
    return PriceModel(
        _rate_of(tariff),
        tariff.quantum or 0.0,
        None if servers is None else Servers(servers.count, float(servers.per_hour)),
        None
        if interruptions is None
        else Interruptions(interruptions.per_hour, interruptions.restart),
    )


def servers_of(tariff: Tariff) -> ServersSpec | None:
    """Return the parameter servers a tariff pays, if it names any."""
    return None if isinstance(tariff, Decimal) else tariff.servers


def _rate_of(tariff: MachineTariff | ResourceTariff) -> Rate:
    match tariff:
        case MachineTariff(per_hour=per_hour):
            return PerMachine(float(per_hour))
        case ResourceTariff(memory=memory):
            return PerResource(
                float(tariff.per_vcpu_hour),
                float(tariff.per_gib_hour),
                tariff.vcpus,
                MemoryModel(memory.fixed_gib, memory.gib_per_sample),
            )
        case _:
            assert_never(tariff)


def worker_price(tariff: Tariff, local_batch: int) -> Decimal:
    """Dollars per hour of one worker's machine, large enough for a local batch in samples.

    >>> worker_price(Decimal("0.13402"), local_batch=64)
    Decimal('0.13402')
    """
    match tariff:
        case Decimal():
            return tariff
        case MachineTariff(per_hour=per_hour):
            return per_hour
        case ResourceTariff(memory=memory):
            per_sample, fixed = exact(memory.gib_per_sample), exact(memory.fixed_gib)
            gib = fixed + per_sample * local_batch
            return tariff.per_vcpu_hour * exact(tariff.vcpus) + tariff.per_gib_hour * gib
        case _:
            assert_never(tariff)


def exact(value: float) -> Decimal:
    """Return a number as it was written.

    >>> exact(0.1)
    Decimal('0.1')
    """
    return Decimal(repr(value))
