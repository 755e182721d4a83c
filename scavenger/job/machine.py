"""MachineSpec: which machines a job rents, and from which cloud of its controller."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from scavenger.job.fields import SpecModel, StrictText, require_value
from scavenger.job.messages import show_value

MACHINE_TYPE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}")
CLOUD_NAME = re.compile(r"[a-z][a-z0-9-]{0,40}")


def _check_type(name: str) -> str:
    if not MACHINE_TYPE.fullmatch(name):
        raise ValueError(
            f"{show_value(name)} is no machine type: write the cloud's word, e.g. m7i.xlarge"
        )
    return name


def _check_cloud(name: str) -> str:
    if not CLOUD_NAME.fullmatch(name):
        raise ValueError(
            f"{show_value(name)} is no cloud: write the name of an entry of the controller's "
            "clouds file"
        )
    return name


class MachineSpec(SpecModel):
    """Which machines the workers run on; parameter servers run on the same.

    Attributes:
        type: The cloud's word for their size; None for the type that the clouds file names.
        cloud: Name of an entry of the controller's clouds file; None where it has only one.
        market: ``on_demand``; ``spot``, which costs less and may be taken back; or ``any``, spot
            first and on demand while no zone gives one.
    """

    type: Annotated[
        Annotated[StrictText, AfterValidator(_check_type)] | None, BeforeValidator(require_value)
    ] = Field(None, examples=["m7i.xlarge"])
    cloud: Annotated[
        Annotated[StrictText, AfterValidator(_check_cloud)] | None, BeforeValidator(require_value)
    ] = Field(None, examples=["aws-frankfurt"])
    market: Literal["on_demand", "spot", "any"] = Field("on_demand", examples=["spot"])
