"""Strategy: what a person writes about how the workers train together.

A part of ``JobSpec``; the controller launches the servers it names, and every Directive repeats it.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, Strict

from scavenger.document import shown
from scavenger.protocol import Exchange, StrategyName
from scavenger.section import Section, present

ServerCount = Annotated[int, Strict(), Field(ge=1, le=64)]
Iterations = Annotated[int, Strict(), Field(ge=1, le=100_000)]


class AllReduceSpec(Section):
    """Workers average their gradients among themselves."""

    name: ClassVar[StrategyName] = "all_reduce"
    servers: ClassVar[int] = 0
    priced: ClassVar[bool] = False
    exchange: ClassVar[Exchange] = Exchange()


class ParameterServerSpec(Section):
    """Workers push gradients to servers, which wait for all of them (the paper's setting).

    Attributes:
        servers: Machines that serve, beside the workers.
        priced: Whether they are paid; if not, they count neither in the cap nor in predictions.
    """

    name: ClassVar[StrategyName] = "parameter_server"
    exchange: ClassVar[Exchange] = Exchange()
    servers: ServerCount = Field(1, examples=[2])
    priced: Annotated[bool, Strict()] = Field(True, examples=["true"])


class DownpourSpec(Section):
    """Workers push to and fetch from servers, each at its own pace (Downpour SGD).

    Attributes:
        servers: Machines that serve, beside the workers.
        priced: Whether they are paid; if not, they count neither in the cap nor in predictions.
        n_push: Iterations of a worker whose gradients are pushed at once.
        n_fetch: Iterations of a worker after which it fetches weights.
    """

    name: ClassVar[StrategyName] = "downpour"
    servers: ServerCount = Field(1, examples=[1])
    priced: Annotated[bool, Strict()] = Field(True, examples=["true"])
    n_push: Iterations = Field(1, examples=[1])
    n_fetch: Iterations = Field(1, examples=[1])

    @property
    def exchange(self) -> Exchange:
        """How often a worker speaks to the servers."""
        return Exchange(self.n_push, self.n_fetch)


Strategy = AllReduceSpec | ParameterServerSpec | DownpourSpec


class StrategyChoice(Section):
    """A strategy with servers, under its name.

    Attributes:
        parameter_server: Servers wait for all workers.
        downpour: Nobody waits for anybody.
    """

    parameter_server: Annotated[ParameterServerSpec | None, BeforeValidator(present)] = Field(
        None, examples=["{servers: 2, priced: true}"]
    )
    downpour: Annotated[DownpourSpec | None, BeforeValidator(present)] = Field(
        None, examples=["{servers: 1, n_push: 1, n_fetch: 1}"]
    )


_STRATEGIES = "all_reduce, parameter_server, downpour or e.g. {parameter_server: {servers: 2}}"


def _read_strategy(value: object) -> Strategy:
    match value:
        case AllReduceSpec() | ParameterServerSpec() | DownpourSpec():
            return value
        case "all_reduce":
            return AllReduceSpec()
        case "parameter_server":
            return ParameterServerSpec()
        case "downpour":
            return DownpourSpec()
        case dict():
            return _read_choice(value)
        case _:
            raise ValueError(f"must be {_STRATEGIES}, got {shown(value)}")


def _read_choice(value: dict[object, object]) -> Strategy:
    choice = StrategyChoice.model_validate(value)
    if choice.parameter_server is not None and choice.downpour is not None:
        raise ValueError("parameter_server and downpour exclude each other: write one of them")
    named = choice.parameter_server or choice.downpour
    if named is None:
        raise ValueError(f"names no strategy: write {_STRATEGIES}")
    return named


def _write_strategy(strategy: Strategy) -> str | dict[str, Any]:
    if isinstance(strategy, AllReduceSpec):
        return strategy.name
    return {strategy.name: strategy.model_dump(mode="json")}


StrategyField = Annotated[
    Strategy,
    PlainValidator(_read_strategy, json_schema_input_type=StrategyName | StrategyChoice),
    PlainSerializer(_write_strategy, return_type=str | dict[str, Any], when_used="json"),
]
