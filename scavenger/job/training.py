"""Training strategy, learning rate and stacks in the job document.

The controller launches the parameter servers that the strategy names; every Directive repeats the
strategy and the ``LearningRateScaling`` that the learning-rate rule stands for.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    Strict,
    TypeAdapter,
    ValidationInfo,
    field_validator,
)

from scavenger.job.fields import SpecModel, require_value
from scavenger.job.layout import MAX_STAGES, ModuleName, check_cuts
from scavenger.job.messages import show_value
from scavenger.layout import PLAIN, Layout
from scavenger.learning_rate import LearningRateRule
from scavenger.protocol import ExchangeInterval, LbfgsSettings, TrainingStrategyName
from scavenger.stack import Stack

ServerCount = Annotated[int, Strict(), Field(ge=1, le=64)]
ProcessCount = Annotated[int, Strict(), Field(ge=1, le=64)]
IterationCount = Annotated[int, Strict(), Field(ge=1, le=100_000)]


class AllReduceSpec(SpecModel):
    """Workers average their gradients among themselves."""

    name: ClassVar[TrainingStrategyName] = "all_reduce"
    is_searched: ClassVar[bool] = True
    writes_checkpoints: ClassVar[bool] = True
    servers: ClassVar[int] = 0
    priced: ClassVar[bool] = False
    exchange: ClassVar[ExchangeInterval] = ExchangeInterval()
    lbfgs: ClassVar[LbfgsSettings] = LbfgsSettings()


class ParameterServerSpec(SpecModel):
    """Workers push gradients to servers, which wait for all of them (the paper's setting).

    Attributes:
        servers: Machines that serve, beside the workers.
        priced: Whether they are paid; if not, they count neither in the cap nor in predictions.
    """

    name: ClassVar[TrainingStrategyName] = "parameter_server"
    is_searched: ClassVar[bool] = True
    writes_checkpoints: ClassVar[bool] = True
    exchange: ClassVar[ExchangeInterval] = ExchangeInterval()
    lbfgs: ClassVar[LbfgsSettings] = LbfgsSettings()
    servers: ServerCount = Field(1, examples=[2])
    priced: Annotated[bool, Strict()] = Field(True, examples=["true"])


class DownpourSpec(SpecModel):
    """Workers push to and fetch from servers, each at its own pace (Downpour SGD).

    Attributes:
        servers: Machines that serve, beside the workers.
        priced: Whether they are paid; if not, they count neither in the cap nor in predictions.
        n_push: Iterations of a worker whose gradients are pushed at once.
        n_fetch: Iterations of a worker after which it fetches weights.
    """

    name: ClassVar[TrainingStrategyName] = "downpour"
    is_searched: ClassVar[bool] = False  # no law tells which configuration is best
    writes_checkpoints: ClassVar[bool] = False
    lbfgs: ClassVar[LbfgsSettings] = LbfgsSettings()
    servers: ServerCount = Field(1, examples=[1])
    priced: Annotated[bool, Strict()] = Field(True, examples=["true"])
    n_push: IterationCount = Field(1, examples=[1])
    n_fetch: IterationCount = Field(1, examples=[1])

    @property
    def exchange(self) -> ExchangeInterval:
        """How often a worker speaks to the servers."""
        return ExchangeInterval(self.n_push, self.n_fetch)


_STAGES: TypeAdapter[tuple[int, ...]] = TypeAdapter(tuple[ProcessCount, ...])


def _read_stages(value: object) -> Literal["auto"] | tuple[int, ...]:
    if value == "auto":
        return "auto"
    if not isinstance(value, (list, tuple)):
        raise ValueError(
            f"must be auto or the processes of each stage, got {show_value(value)}: write e.g. "
            "[1, 1]"
        )
    stages = _STAGES.validate_python(value)
    if not 2 <= len(stages) <= MAX_STAGES:
        raise ValueError(
            f"{list(stages)} must have 2 to {MAX_STAGES} stages: write e.g. [1, 1], or leave "
            "strategy out and let limits.workers share the batch"
        )
    return stages


StagesField = Annotated[
    Literal["auto"] | tuple[int, ...],
    PlainValidator(_read_stages, json_schema_input_type=Literal["auto"] | tuple[ProcessCount, ...]),
    PlainSerializer(
        lambda stages: stages if stages == "auto" else list(stages),
        return_type=str | list[int],
        when_used="json",
    ),
]


class PipeDreamSpec(SpecModel):
    """The processes of one worker are stages of an asynchronous pipeline (PipeDream).

    Attributes:
        stages: Processes of each stage, first to last, which take minibatches in turn; ``auto`` for
            those that a profile of the model finds to be fastest.
        cuts: Names of the modules that the stages after the first begin with; None to divide by
            weights.
        vertical_sync: Whether a minibatch uses in all stages weights of the same minibatches, those
            that the first stage has when it enters.
    """

    name: ClassVar[TrainingStrategyName] = "pipedream"
    is_searched: ClassVar[bool] = False  # its epochs are of one batch and one pipeline
    writes_checkpoints: ClassVar[bool] = True
    servers: ClassVar[int] = 0
    priced: ClassVar[bool] = False
    exchange: ClassVar[ExchangeInterval] = ExchangeInterval()
    lbfgs: ClassVar[LbfgsSettings] = LbfgsSettings()
    stages: StagesField = Field(examples=["[2, 1]"])
    cuts: Annotated[tuple[ModuleName, ...] | None, BeforeValidator(require_value)] = Field(
        None, examples=["[layers.3]"]
    )
    vertical_sync: Annotated[bool, Strict()] = Field(False, examples=["true"])

    @field_validator("cuts")
    @classmethod
    def _lie_between_stages(
        cls, cuts: tuple[str, ...] | None, info: ValidationInfo
    ) -> tuple[str, ...] | None:
        stages = info.data.get("stages")
        if cuts is not None and stages == "auto":
            raise ValueError(
                "belong to stages that are written down: leave cuts out, or write the processes "
                "of each stage in place of auto"
            )
        if cuts is not None and stages is not None:
            check_cuts(cuts, len(stages))
        return cuts

    @property
    def layout(self) -> Layout:
        """How the processes of the worker share the model; that of one process with ``auto``."""
        if self.stages == "auto":
            return PLAIN
        return Layout(
            len(self.stages),
            replicas=self.stages,
            cuts=self.cuts or (),
            vertical_sync=self.vertical_sync,
        )


class SandblasterSpec(SpecModel):
    """Workers compute parts of large batches, and servers step by L-BFGS (Sandblaster).

    Attributes:
        servers: Machines that serve, beside the workers.
        priced: Whether they are paid; if not, they count neither in the cap nor in predictions.
        history: Pairs of steps and gradient changes that a direction is made from.
        portions: Parts into which the batch of an iteration is cut.
    """

    name: ClassVar[TrainingStrategyName] = "sandblaster"
    is_searched: ClassVar[bool] = False
    writes_checkpoints: ClassVar[bool] = False
    exchange: ClassVar[ExchangeInterval] = ExchangeInterval()
    servers: ServerCount = Field(1, examples=[2])
    priced: Annotated[bool, Strict()] = Field(True, examples=["true"])
    history: Annotated[int, Strict(), Field(ge=1, le=100)] = Field(10, examples=[10])
    portions: Annotated[int, Strict(), Field(ge=1, le=1000)] = Field(80, examples=[80])

    @property
    def lbfgs(self) -> LbfgsSettings:
        """How the servers step."""
        return LbfgsSettings(self.history, self.portions)


TrainingStrategySpec = (
    AllReduceSpec | ParameterServerSpec | DownpourSpec | PipeDreamSpec | SandblasterSpec
)


class NamedStrategySpec(SpecModel):
    """A strategy with options, under its name.

    Attributes:
        parameter_server: Servers wait for all workers.
        downpour: No worker waits for another.
        sandblaster: Servers step by L-BFGS.
        pipedream: Stages of a pipeline do not wait for the end of an iteration.
    """

    parameter_server: Annotated[ParameterServerSpec | None, BeforeValidator(require_value)] = Field(
        None, examples=["{servers: 2, priced: true}"]
    )
    downpour: Annotated[DownpourSpec | None, BeforeValidator(require_value)] = Field(
        None, examples=["{servers: 1, n_push: 1, n_fetch: 1}"]
    )
    sandblaster: Annotated[SandblasterSpec | None, BeforeValidator(require_value)] = Field(
        None, examples=["{servers: 2, history: 10, portions: 80}"]
    )
    pipedream: Annotated[PipeDreamSpec | None, BeforeValidator(require_value)] = Field(
        None, examples=["{stages: [2, 1]}"]
    )


_STRATEGIES = (
    "all_reduce, parameter_server, downpour, sandblaster or e.g. "
    "{parameter_server: {servers: 2}} or {pipedream: {stages: [1, 1]}}"
)


def _read_strategy(value: object) -> TrainingStrategySpec:
    match value:
        case (
            AllReduceSpec()
            | ParameterServerSpec()
            | DownpourSpec()
            | PipeDreamSpec()
            | SandblasterSpec()
        ):
            return value
        case "all_reduce":
            return AllReduceSpec()
        case "parameter_server":
            return ParameterServerSpec()
        case "downpour":
            return DownpourSpec()
        case "sandblaster":
            return SandblasterSpec()
        case "pipedream":
            raise ValueError(
                "pipedream needs the processes of each stage: write e.g. "
                "{pipedream: {stages: [1, 1]}} or {pipedream: {stages: auto}}"
            )
        case dict():
            return _read_choice(value)
        case _:
            raise ValueError(f"must be {_STRATEGIES}, got {show_value(value)}")


def _read_choice(value: dict[object, object]) -> TrainingStrategySpec:
    choice = NamedStrategySpec.model_validate(value)
    written = {name: each for name, each in choice if each is not None}
    if len(written) > 1:
        raise ValueError(f"{' and '.join(written)} exclude each other: write one of them")
    if not written:
        raise ValueError(f"names no strategy: write {_STRATEGIES}")
    (named,) = written.values()
    strategy: TrainingStrategySpec = named
    return strategy


def _write_strategy(strategy: TrainingStrategySpec) -> str | dict[str, Any]:
    if isinstance(strategy, AllReduceSpec):
        return strategy.name
    return {strategy.name: strategy.model_dump(mode="json", exclude_none=True)}


TrainingStrategyField = Annotated[
    TrainingStrategySpec,
    PlainValidator(_read_strategy, json_schema_input_type=TrainingStrategyName | NamedStrategySpec),
    PlainSerializer(_write_strategy, return_type=str | dict[str, Any], when_used="json"),
]

# Goyal et al. (2017) warm up over 5 of 90 epochs.
USUAL_WARM_UP_SHARE = 0.05
MAX_USUAL_WARM_UP_EPOCHS = 5.0


class LearningRateSpec(SpecModel):
    """How the learning rate follows the global batch.

    Attributes:
        rule: The law: ``adascale`` also follows the measured noise.
        warm_up: Reference epochs over which a larger learning rate is approached; None leaves it
            to the rule.
    """

    rule: LearningRateRule = Field(examples=["linear"])
    warm_up: Annotated[
        Annotated[float, Strict(), Field(ge=0, le=1_000_000, allow_inf_nan=False)] | None,
        BeforeValidator(require_value),
    ] = Field(None, examples=[5])

    def warm_up_within(self, epochs: float) -> float:
        """Return the warm-up of a training of at most so many reference epochs.

        >>> LearningRateSpec(rule="linear").warm_up_within(60.0)
        3.0
        """
        if self.warm_up is not None:
            return self.warm_up
        return (
            min(USUAL_WARM_UP_SHARE * epochs, MAX_USUAL_WARM_UP_EPOCHS)
            if self.rule == "linear"
            else 0.0
        )


_STACKS = "auto, or a list such as [eager, bf16+fused]"


def _read_stacks(value: object) -> Literal["auto"] | tuple[str, ...]:
    if value == "auto":
        return "auto"
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"must be {_STACKS}, got {show_value(value)}")
    names: dict[str, None] = {}
    for each in value:
        if not isinstance(each, str):
            raise ValueError(f"must be {_STACKS}, got {show_value(each)} in the list")
        names[str(Stack.parse(each))] = None
    return tuple(names)


def _write_stacks(stacks: Literal["auto"] | tuple[str, ...]) -> str | list[str]:
    return "auto" if stacks == "auto" else list(stacks)


StacksField = Annotated[
    Literal["auto"] | tuple[str, ...],
    PlainValidator(_read_stacks, json_schema_input_type=Literal["auto"] | list[str]),
    PlainSerializer(_write_stacks, return_type=str | list[str], when_used="json"),
]

_RULE: TypeAdapter[LearningRateRule] = TypeAdapter(LearningRateRule)


def _read_learning_rate(value: object) -> LearningRateSpec:
    if isinstance(value, LearningRateSpec):
        return value
    if isinstance(value, dict):
        return LearningRateSpec.model_validate(value)
    return LearningRateSpec(rule=_RULE.validate_python(value))


def _write_learning_rate(recipe: LearningRateSpec) -> str | dict[str, Any]:
    return recipe.rule if recipe.warm_up is None else recipe.model_dump(mode="json")


LearningRateField = Annotated[
    LearningRateSpec,
    PlainValidator(_read_learning_rate, json_schema_input_type=LearningRateRule | LearningRateSpec),
    PlainSerializer(_write_learning_rate, return_type=str | dict[str, Any], when_used="json"),
]
