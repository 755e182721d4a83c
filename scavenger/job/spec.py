"""JobSpec: what a user asks for. The first step of the walk, handed to ``decide``.

It is a pydantic model because users write the document; ``scavenger.job.validation`` reads one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    Strict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails

from scavenger.cluster import ConfigSpace
from scavenger.errors import PriceMissing
from scavenger.job.fields import (
    SpecModel,
    StrictText,
    closest_name,
    literal_type,
    require_value,
)
from scavenger.job.limits import BatchSize, Limits
from scavenger.job.machine import MachineSpec
from scavenger.job.messages import show_value
from scavenger.job.pricing import (
    PriceField,
    PriceSpec,
    price_model_of,
    priced_servers,
    worker_price_per_hour,
)
from scavenger.job.run import RunSpec
from scavenger.job.training import (
    AllReduceSpec,
    DownpourSpec,
    LearningRateField,
    LearningRateSpec,
    ParameterServerSpec,
    PipeDreamSpec,
    SandblasterSpec,
    StacksField,
    TrainingStrategyField,
    TrainingStrategySpec,
)
from scavenger.layout import Layout
from scavenger.learning_rate import LearningRateScaling
from scavenger.planning.layout_search import PipelineSearch
from scavenger.planning.layouts import GIB
from scavenger.planning.objectives import plain_objectives
from scavenger.planning.search.registry import SEARCHES
from scavenger.pricing import PriceModel, ServerPrice
from scavenger.protocol import (
    ExchangeInterval,
    FrameworkName,
    StopAtMetric,
    StopAtProgress,
    StopRule,
    TrainingStrategyName,
)
from scavenger.stack import (
    AUTOMATIC_SHORT_STACKS,
    AUTOMATIC_STACKS,
    EAGER_NAME,
    Stack,
    measured_option,
)

MAX_GOAL = 1e15  # a database writes a larger number without its exponent, as no document may

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_KEY = re.compile(r"[A-Za-z0-9._/-]{1,200}")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{show_value(name)} is no job name: write up to 63 lower-case letters, digits and "
            "hyphens, "
            f"e.g. {_name_from(name)}"
        )
    return name


def _name_from(text: str) -> str:
    """Make a job name from a model key."""
    return re.sub("[^a-z0-9]+", "-", text[:200].lower()).strip("-")[:63].strip("-") or "job"


def _check_key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(
            f"{show_value(key)} is no model key: write up to 200 letters, digits and . _ - /, "
            "e.g. resnet18/cifar10"
        )
    return key


LabelText = Annotated[str, Strict(), Field(min_length=1, max_length=200)]
# What is less is no sample of any dataset, and its time is so short that shares of it overflow.
EpochCount = Annotated[float, Strict(), Field(ge=1e-9, le=1_000_000, allow_inf_nan=False)]


class ModelSpec(SpecModel):
    """What is trained.

    Attributes:
        key: Names the stored performance model that this job learns or reuses.
        dataset_size: Samples in one epoch.
    """

    key: Annotated[StrictText, AfterValidator(_check_key)] = Field(
        examples=["resnet18/cifar10"], json_schema_extra={"pattern": f"^{_KEY.pattern}$"}
    )
    dataset_size: Annotated[int, Strict(), Field(ge=1, le=10**12)] = Field(examples=[50000])


class EpochsTarget(SpecModel):
    """Train for a number of epochs, counted as epochs at a reference batch.

    Attributes:
        epochs: Epochs the training needs at ``at_batch``.
        at_batch: The reference batch: the global batch the number of epochs is known for.
    """

    epochs: EpochCount = Field(examples=[30])
    at_batch: BatchSize = Field(examples=[64])


class MetricTarget(SpecModel):
    """Train until a logged metric reaches a goal.

    Attributes:
        metric: Name under which the training script logs the value.
        goal: Value to reach.
        direction: ``at_least`` for metrics that grow, ``at_most`` for losses.
        max_epochs: Reference epochs after which training stops without success.
        at_batch: The reference batch; None means the smallest allowed global batch.
    """

    metric: LabelText = Field(examples=["accuracy"])
    goal: Annotated[float, Strict(), Field(ge=-MAX_GOAL, le=MAX_GOAL, allow_inf_nan=False)] = Field(
        examples=[0.97]
    )
    direction: Literal["at_least", "at_most"] = Field("at_least", examples=["at_least"])
    max_epochs: EpochCount = Field(examples=[120])
    at_batch: Annotated[BatchSize | None, BeforeValidator(require_value)] = Field(
        None, examples=[64]
    )


def _read_target(value: object) -> EpochsTarget | MetricTarget:
    if not isinstance(value, dict):
        raise ValueError(f"must be a mapping, got {show_value(value)}: write e.g. {_TARGETS}")
    return target_type(value).model_validate(value)


_TARGETS = (
    "{epochs: 30, at_batch: 64} to train that long, "
    "or {metric: accuracy, goal: 0.97, max_epochs: 120} to train until reached"
)
_METRIC_KEYS = ("metric", "goal", "direction", "max_epochs")


def target_type(value: Mapping[str, object]) -> type[EpochsTarget | MetricTarget]:
    """Tell which target is meant by the keys that are there, misspelt ones last."""
    of_metric = next((key for key in _METRIC_KEYS if key in value), None)
    if "epochs" in value and of_metric:
        raise ValueError(f"epochs and {of_metric} exclude each other: write {_TARGETS}")
    if "epochs" in value:
        return EpochsTarget
    if of_metric:
        return MetricTarget
    for key in list(value)[:10]:
        meant = closest_name(key, ["epochs", "at_batch", *_METRIC_KEYS])
        if meant and meant != "at_batch":
            return MetricTarget if meant in _METRIC_KEYS else EpochsTarget
    raise ValueError(f"says neither epochs nor metric: write {_TARGETS}")


class WeightedObjective(SpecModel):
    """Least time^w times cost^(1-w): each percent of time is worth w / (1-w) percent of cost.

    Attributes:
        time_weight: w, from 0 for the cheapest to 1 for the fastest.
    """

    time_weight: Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)] = Field(
        examples=[0.7]
    )


def _read_objective(value: object) -> str | WeightedObjective:
    if isinstance(value, dict):
        return WeightedObjective.model_validate(value)
    if not isinstance(value, str) or value not in plain_objectives():
        names = ", ".join(plain_objectives())
        raise ValueError(f"must be {names} or e.g. {{time_weight: 0.7}}, got {show_value(value)}")
    return value


ObjectiveField = Annotated[
    str | WeightedObjective,
    PlainValidator(
        _read_objective, json_schema_input_type=literal_type(plain_objectives()) | WeightedObjective
    ),
    PlainSerializer(
        lambda objective: objective if isinstance(objective, str) else objective.model_dump(),
        return_type=str | dict[str, Any],
        when_used="json",
    ),
]


def _read_search(value: object) -> str:
    if not isinstance(value, str) or value not in SEARCHES:
        *others, last = SEARCHES
        raise ValueError(f"must be {', '.join(others)} or {last}, got {show_value(value)}")
    return value


SearchName = Annotated[
    str, PlainValidator(_read_search, json_schema_input_type=literal_type(SEARCHES))
]


class JobSpec(SpecModel):
    """A job: what is trained, until when, within which limits, and with which command.

    Attributes:
        model: What is trained.
        name: Up to 63 lower-case letters, digits and hyphens; made from the model key if absent.
        target: When training is done.
        objective: Which configuration of the cost/time curve to train on.
        limits: What the job may use.
        search: How many configurations to probe before choosing one.
        laws: Whether measurements choose the form of the laws, or the paper's forms are taken.
        level: Whether the job is resized, or only measured, or measured and advised.
        strategy: How the workers train together.
        lr_scaling: How the learning rate follows the global batch.
        nan_guard: Whether a step does nothing if its averaged gradient is not finite.
        precision: Whether stacks may compute with fewer bits than the script says.
        stacks: How each worker may compute a step; ``auto`` tries what may be faster.
        framework: What the script trains with, whose times are no other framework's; None counts
            as PyTorch.
        price: Dollars per worker-hour, or a tariff; None for the price of its machines, which the
            controller writes down when the job is submitted.
        machine: Which machines to rent; None for those of the controller's own cloud.
        run: What every worker runs.
    """

    model: ModelSpec = Field(examples=["{key: resnet18/cifar10, dataset_size: 50000}"])
    name: Annotated[StrictText, AfterValidator(_check_name)] = Field(
        default_factory=lambda data: _name_from(data["model"].key), examples=["resnet18-cifar10"]
    )
    target: Annotated[EpochsTarget | MetricTarget, BeforeValidator(_read_target)] = Field(
        examples=["{epochs: 30, at_batch: 64}"]
    )
    objective: ObjectiveField = Field("knee", examples=["knee"])
    limits: Limits = Field(examples=["{workers: 1..4, batch: 32..256}"])
    search: SearchName = Field("auto", examples=["auto"])
    laws: Literal["measured", "paper"] = Field("measured", examples=["measured"])
    level: Literal["observe", "advise", "control"] = Field("control", examples=["advise"])
    strategy: TrainingStrategyField = Field(AllReduceSpec(), examples=["all_reduce"])
    lr_scaling: LearningRateField = Field(LearningRateSpec(rule="none"), examples=["linear"])
    nan_guard: Literal["on", "off"] = Field("off", examples=["on"])
    precision: Literal["script", "any"] = Field("script", examples=["any"])
    framework: Annotated[FrameworkName | None, BeforeValidator(require_value)] = Field(
        None, examples=["tensorflow"]
    )
    stacks: StacksField = Field((EAGER_NAME,), examples=["auto"])
    price: Annotated[PriceField | None, BeforeValidator(require_value)] = Field(
        None, examples=["0.13402 USD/h"]
    )
    machine: Annotated[MachineSpec | None, BeforeValidator(require_value)] = Field(
        None, examples=["{type: m7i.xlarge, market: spot}"]
    )
    run: RunSpec = Field(examples=["{command: [python, train.py]}"])

    @field_validator("strategy")
    @classmethod
    def _can_be_chosen_for(
        cls, strategy: TrainingStrategySpec, info: ValidationInfo
    ) -> TrainingStrategySpec:
        if "limits" not in info.data:
            return strategy
        limits: Limits = info.data["limits"]
        if not strategy.is_searched:
            _check_single(limits.space, strategy.name)
        if isinstance(strategy, PipeDreamSpec):
            _check_pipeline(limits)
        if isinstance(strategy, SandblasterSpec) and limits.memory is not None:
            raise ValueError(
                "a worker of sandblaster holds one portion at a time, not its part of the batch: "
                "leave limits.memory out, and write more portions where one is too large"
            )
        return strategy

    @field_validator("lr_scaling")
    @classmethod
    def _can_be_followed(cls, spec: LearningRateSpec, info: ValidationInfo) -> LearningRateSpec:
        strategy: TrainingStrategySpec = info.data.get("strategy", AllReduceSpec())
        if spec.rule != "none" and not strategy.is_searched:
            raise ValueError(
                f"{strategy.name} never changes its batch, so there is nothing to scale: leave it "
                "out"
            )
        return spec

    @field_validator("nan_guard")
    @classmethod
    def _can_be_guarded(cls, guard: str, info: ValidationInfo) -> str:
        strategy: TrainingStrategySpec = info.data.get("strategy", AllReduceSpec())
        if guard == "on" and isinstance(strategy, PipeDreamSpec):
            raise ValueError(
                "stages of an asynchronous pipeline cannot skip a step together: leave nan_guard "
                "out, or write limits.layout in place of strategy: pipedream"
            )
        if guard == "on" and not isinstance(strategy, AllReduceSpec):
            raise ValueError(
                "servers step by themselves and cannot skip a step together: leave nan_guard out, "
                "or write strategy: all_reduce"
            )
        return guard

    @field_validator("framework")
    @classmethod
    def _can_be_trained_with(
        cls, framework: FrameworkName | None, info: ValidationInfo
    ) -> FrameworkName | None:
        if framework == "tensorflow" and isinstance(info.data.get("strategy"), SandblasterSpec):
            raise ValueError(
                "sandblaster is PyTorch's: leave framework out, or write strategy: downpour"
            )
        return framework

    @field_validator("stacks")
    @classmethod
    def _can_be_used(
        cls, stacks: Literal["auto"] | tuple[str, ...], info: ValidationInfo
    ) -> Literal["auto"] | tuple[str, ...]:
        if stacks == (EAGER_NAME,):
            return stacks
        strategy: TrainingStrategySpec = info.data.get("strategy", AllReduceSpec())
        if isinstance(strategy, PipeDreamSpec):
            raise ValueError(
                "stacks change the whole model and a pipeline cuts it: leave one of stacks and "
                "strategy: pipedream out"
            )
        if not isinstance(strategy, AllReduceSpec):
            raise ValueError(
                "with servers each script computes its steps as it is written: leave stacks out, "
                "or write strategy: all_reduce"
            )
        if info.data.get("framework") == "tensorflow":
            raise ValueError("stacks are PyTorch's: leave stacks out with framework: tensorflow")
        named = () if stacks == "auto" else stacks
        short = [name for name in named if not Stack.parse(name).keeps_precision]
        if short and info.data.get("precision") == "script":
            raise ValueError(
                f"{short[0]} computes with fewer bits than the script says: write precision: any "
                "beside it, or leave it out"
            )
        return stacks

    @field_validator("run")
    @classmethod
    def _can_be_written_down(cls, run: RunSpec, info: ValidationInfo) -> RunSpec:
        strategy = info.data.get("strategy", AllReduceSpec())
        if run.checkpoints is not None and not strategy.writes_checkpoints:
            raise ValueError(
                f"{strategy.name} writes no checkpoints: leave run.checkpoints out, and let the "
                "script save the weights of its leader"
            )
        limits: Limits | None = info.data.get("limits")
        is_cut = isinstance(info.data.get("strategy"), PipeDreamSpec)
        if is_cut or (limits is not None and limits.may_share_model):
            _check_layout(info.data, is_under_agent=run.is_under_agent)
        if run.is_under_agent and "strategy" in info.data:
            _check_agent_run(info.data["strategy"], info.data.get("framework"))
            if info.data.get("nan_guard") == "on":
                raise ValueError(
                    "steps of a script under agent run are its own and are not guarded: leave "
                    "nan_guard out, or let the script open a worker_agent.session()"
                )
            if info.data.get("stacks", (EAGER_NAME,)) != (EAGER_NAME,):
                raise ValueError(
                    "a script under agent run computes its steps as it is written: leave stacks "
                    "out, or let the script open a worker_agent.session()"
                )
        return run

    @field_validator("price")
    @classmethod
    def _pays_the_servers(cls, price: PriceSpec, info: ValidationInfo) -> PriceSpec:
        if "strategy" in info.data:
            _check_servers(price, info.data["strategy"])
        return price

    @model_validator(mode="after")
    def _uses_memory_of_processes(self) -> JobSpec:
        if self.limits.process_gib is None or self.profiles_model:
            return self
        if isinstance(self.strategy, PipeDreamSpec):
            way_out = "write strategy: {pipedream: {stages: auto}}, or leave it out"
        else:
            way_out = (
                "write layout: auto beside it, or layout: 1 to refuse a model that does not fit"
            )
        problem = InitErrorDetails(
            type="value_error",
            loc=("limits", "process_gib"),
            input=self.limits.process_gib,
            ctx={"error": ValueError(f"is the memory that layouts share: {way_out}")},
        )
        raise ValidationError.from_exception_data("JobSpec", [problem])

    @property
    def profiles_model(self) -> bool:
        """Whether a profile of the model says how the processes of a worker share it."""
        return self.limits.layout_search is not None or self.pipeline_search is not None

    @property
    def pipeline_search(self) -> PipelineSearch | None:
        """Which asynchronous pipelines a profile is to compare; None where none is searched."""
        strategy, limits = self.strategy, self.limits
        if not isinstance(strategy, PipeDreamSpec) or strategy.stages != "auto":
            return None
        memory = None if limits.process_gib is None else limits.process_gib * GIB
        batch = limits.space.start.global_batch  # of the only configuration
        return PipelineSearch(batch, memory, strategy.vertical_sync)

    @property
    def layout(self) -> Layout:
        """How the processes of each worker share the model, where the document says it."""
        if isinstance(self.strategy, PipeDreamSpec):
            return self.strategy.layout
        return self.limits.layout_of_workers

    @property
    def space(self) -> ConfigSpace:
        """The grid of configurations the job may use, with each of its stacks."""
        return add_stacks(self.limits.space, self.stack_names)

    @property
    def stack_names(self) -> tuple[str, ...]:
        """The stacks it may use, the one it starts with first."""
        if self.stacks != "auto":
            return self.stacks
        return AUTOMATIC_STACKS + AUTOMATIC_SHORT_STACKS * (self.precision == "any")

    @property
    def reference_batch(self) -> int:
        """The global batch whose epochs count, in samples."""
        return self.target.at_batch or self.space.global_batches[0]

    @property
    def known_price(self) -> PriceSpec:
        """The price, which every job has that was submitted.

        Raises:
            PriceMissing: The document names none, and no controller has completed it.
        """
        if self.price is None:
            raise PriceMissing(
                "the job names no price, and only a controller knows those of machines: write "
                "e.g. price: 0.13402 USD/h"
            )
        return self.price

    @property
    def price_model(self) -> PriceModel:
        """What configurations cost, servers included where they are priced."""
        model, strategy = price_model_of(self.known_price), self.strategy
        if isinstance(strategy, AllReduceSpec):
            return model
        price = float(self.server_price)
        return replace(model, servers=ServerPrice(strategy.servers, price) if price else None)

    @property
    def price_per_hour(self) -> Decimal:
        """Dollars per hour one worker's machine costs at most, at the largest local batch."""
        space = self.space
        largest = -(-space.global_batches[-1] // space.workers[0])
        # Another stack than the script's may need less memory, and so hold more.
        most = space.most_local_batch if len(space.stacks) == 1 else math.inf
        return worker_price_per_hour(self.known_price, int(min(largest, most)))

    @property
    def server_price(self) -> Decimal:
        """Dollars per hour of one parameter server: the tariff's, or else as a worker's machine."""
        if not self.strategy.priced:
            return Decimal(0)
        paid = priced_servers(self.known_price)
        return self.price_per_hour if paid is None else paid.per_hour

    @property
    def learning_rate_scaling(self) -> LearningRateScaling:
        """How the learning rate that was written for the reference batch follows to others."""
        warm_up = self.lr_scaling.warm_up_within(self.stop_rule.max_progress)
        return LearningRateScaling(self.lr_scaling.rule, self.reference_batch, warm_up)

    @property
    def quantum(self) -> float:
        """Seconds of a machine that are billed at once; 0 bills exactly."""
        return self.price_model.quantum

    @property
    def objective_text(self) -> str:
        """The objective as people say it: ``knee`` or ``optimum at time 70%, cost 30%``."""
        if isinstance(self.objective, str):
            return self.objective
        weight = self.objective.time_weight
        return f"optimum at time {weight:.0%}, cost {1 - weight:.0%}"

    @property
    def target_text(self) -> str:
        """The target as people say it: ``accuracy >= 0.97`` or ``30 epochs at batch 64``."""
        match self.target:
            case EpochsTarget(epochs=epochs, at_batch=at_batch):
                return f"{_number(epochs)} epochs at batch {at_batch}"
            case MetricTarget(metric=metric, goal=goal, direction=direction):
                return f"{metric} {'>=' if direction == 'at_least' else '<='} {_number(goal)}"

    @property
    def stop_rule(self) -> StopRule:
        """Return when workers stop, in reference epochs of progress."""
        match self.target:
            case EpochsTarget(epochs=epochs):
                return StopAtProgress(max_progress=epochs)
            case MetricTarget() as target:
                return StopAtMetric(
                    metric=target.metric,
                    goal=target.goal,
                    direction=target.direction,
                    max_progress=target.max_epochs,
                )

    @property
    def machine_type(self) -> str | None:
        """The cloud's word for the machines; None where the job names none."""
        return None if self.machine is None else self.machine.type

    def on_machine(self, cloud: str, machine_type: str) -> JobSpec:
        """Return the same job with its cloud and machine type written down."""
        market = "on_demand" if self.machine is None else self.machine.market
        machine = MachineSpec(type=machine_type, cloud=cloud, market=market)
        return self.model_copy(update={"machine": machine})

    def at_price(self, price_per_hour: Decimal) -> JobSpec:
        """Return the same job with the price of one worker's machine written down."""
        return self.model_copy(update={"price": price_per_hour})

    def document(self) -> dict[str, Any]:
        """Return the document as JSON values; ``validate_job`` reads it as an equal spec."""
        return self.model_dump(mode="json", exclude_none=True)


@lru_cache(maxsize=1024)  # asked for as often as the limits' own space
def add_stacks(space: ConfigSpace, names: tuple[str, ...]) -> ConfigSpace:
    """Return a grid with each of these stacks."""
    if names == (EAGER_NAME,):
        return space
    options = [measured_option(name, (), None) for name in names]
    return replace(space, stacks=tuple(option for option in options if option is not None))


def _check_single(space: ConfigSpace, strategy: TrainingStrategyName) -> None:
    configurations = len(tuple(space))
    if configurations > 1:
        raise ValueError(
            f"{strategy} never waits, so no law tells which configuration is best, and the "
            f"limits leave {configurations}: write one number for limits.workers and one for "
            f"limits.batch, e.g. workers: {space.workers[-1]}, batch: {space.global_batches[-1]}"
        )


def _check_pipeline(limits: Limits) -> None:
    """Refuse limits that an asynchronous pipeline cannot be within."""
    if limits.space.workers != (1,):
        raise ValueError(
            "the stages of pipedream are processes of one machine: write workers: 1, and more "
            "processes in stages"
        )
    if limits.may_share_model:
        raise ValueError(
            "pipedream says how the model is cut: leave one of strategy and limits.layout out"
        )


def _check_layout(others: Mapping[str, Any], *, is_under_agent: bool) -> None:
    """Refuse what processes that share a model cannot do."""
    if is_under_agent:
        raise ValueError(
            "a script under agent run makes its own passes, so its model cannot be shared: leave "
            "limits.layout or strategy out, or let the script train with job.step()"
        )
    if not isinstance(others.get("strategy", AllReduceSpec()), AllReduceSpec | PipeDreamSpec):
        raise ValueError(
            "with servers each worker has the whole model: leave limits.layout out, or write "
            "strategy: all_reduce"
        )
    if others.get("framework") == "tensorflow":
        raise ValueError(
            "layouts are PyTorch's: leave limits.layout or strategy out with framework: tensorflow"
        )
    if others.get("stacks", (EAGER_NAME,)) != (EAGER_NAME,):
        raise ValueError(
            "stacks change the whole model and a layout cuts it: leave one of stacks and "
            "limits.layout out"
        )


def _check_agent_run(strategy: TrainingStrategySpec, framework: FrameworkName | None) -> None:
    is_theirs = isinstance(strategy, DownpourSpec) and framework == "tensorflow"
    if not strategy.is_searched and not is_theirs:
        raise ValueError(
            f"a script under agent run does not train by {strategy.name}: leave strategy out, or "
            "let the script open a worker_agent.session()"
        )
    if isinstance(strategy, DownpourSpec) and strategy.exchange != ExchangeInterval():
        raise ValueError(
            "a script under agent run pushes and fetches in each step: leave n_push and n_fetch out"
        )
    if isinstance(strategy, ParameterServerSpec) and framework != "tensorflow":
        raise ValueError(
            "under agent run only scripts of TensorFlow have parameter servers: write framework: "
            "tensorflow, or let the script open a worker_agent.session()"
        )


def _check_servers(price: PriceSpec, strategy: TrainingStrategySpec) -> None:
    paid = priced_servers(price)
    if paid is None or strategy.servers == 0:
        return
    if not strategy.priced:
        raise ValueError(
            "servers are paid here but strategy says priced: false: leave one of the two out"
        )
    if paid.count != strategy.servers:
        raise ValueError(
            f"pays {paid.count} servers but strategy has {strategy.servers}: write the same count"
        )


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")
