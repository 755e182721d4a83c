"""Recipe: what a person writes about how the learning rate follows the global batch.

A part of ``JobSpec``; the ``LearningRateScaling`` it stands for travels in every Directive.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, Strict, TypeAdapter

from scavenger.lr_scaling import LearningRateRule
from scavenger.section import Section, present

# Goyal et al. (2017) warm up over 5 of 90 epochs.
USUAL_SHARE = 0.05
USUAL_MOST = 5.0


class LearningRateSpec(Section):
    """How the learning rate follows the global batch.

    Attributes:
        rule: The law: ``adascale`` also follows the measured noise.
        warm_up: Reference epochs over which a larger learning rate is approached; None leaves it
            to the rule.
    """

    rule: LearningRateRule = Field(examples=["linear"])
    warm_up: Annotated[
        Annotated[float, Strict(), Field(ge=0, le=1_000_000, allow_inf_nan=False)] | None,
        BeforeValidator(present),
    ] = Field(None, examples=[5])

    def warm_up_within(self, epochs: float) -> float:
        """Return the warm-up of a training of at most so many reference epochs.

        >>> LearningRateSpec(rule="linear").warm_up_within(60.0)
        3.0
        """
        if self.warm_up is not None:
            return self.warm_up
        return min(USUAL_SHARE * epochs, USUAL_MOST) if self.rule == "linear" else 0.0


_RULE: TypeAdapter[LearningRateRule] = TypeAdapter(LearningRateRule)


def _read_recipe(value: object) -> LearningRateSpec:
    if isinstance(value, LearningRateSpec):
        return value
    if isinstance(value, dict):
        return LearningRateSpec.model_validate(value)
    return LearningRateSpec(rule=_RULE.validate_python(value))


def _write_recipe(recipe: LearningRateSpec) -> str | dict[str, Any]:
    return recipe.rule if recipe.warm_up is None else recipe.model_dump(mode="json")


LearningRateField = Annotated[
    LearningRateSpec,
    PlainValidator(_read_recipe, json_schema_input_type=LearningRateRule | LearningRateSpec),
    PlainSerializer(_write_recipe, return_type=str | dict[str, Any], when_used="json"),
]
