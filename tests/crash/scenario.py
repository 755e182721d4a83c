"""Scenarios: what a job goes through while its controller is killed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scavenger.job.spec import JobSpec
from scavenger.measurement.layout_profile import (
    USUAL_LINK,
    BlockProfile,
    LayoutProfile,
    LinkSpeed,
)
from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.orders import OrderKind
from tests.builders import spec
from tests.fakecloud.faults import Fault, Ignored, LostResponse, Operation, Refused

PRICE = "3.6 USD/h"  # a tenth of a cent per second
Wish = Literal["finish", "cancel", "cancel at once"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One story.

    Attributes:
        phase: How its job ends.
        wish: Who ends it: the training, or the user, as it trains or before its machines run.
        sync: Seconds of synchronisation of an iteration by workers, which decides where it trains.
        interrupts: Whether the cloud takes one training machine back.
        orphans: Machines of ours that the database does not know, and of others, in turns.
        lag: Seconds for which lists may lag behind.
        step: Seconds a controller waits each time.
        faults: What goes wrong on the way to the cloud or in it, once, and for which machine.
        capacity: Machines there are at once, by the letter of the zone; zones are asked in order.
        orders: What the user asks for in turn, each once the one before has been obeyed.
        generations: Which Directives are published before each of the first orders; the others
            wait until the job trains on what was chosen.
        at_once: How many orders are given together; the later ones may make the others needless.
        speeds: How fast workers compute with stacks, beside eager.
        refused: A stack that every worker refuses after its rehearsal, or a layout in which every
            worker's command fails.
        profile: What the first machine measures of a model whose layout is searched.
    """

    name: str
    workers: str
    phase: JobPhase
    wish: Wish = "finish"
    sync: Mapping[int, float] = field(default_factory=dict)
    interrupts: bool = False
    orphans: tuple[int, ...] = ()
    lag: float = 2.0
    step: float = 2.0
    faults: tuple[tuple[Operation, Fault, int | None], ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    orders: tuple[tuple[OrderKind, Mapping[str, Any]], ...] = ()
    generations: tuple[int, ...] = ()
    at_once: int = 1
    speeds: Mapping[str, float] = field(default_factory=dict)
    refused: str = ""
    profile: LayoutProfile | None = None

    @property
    def may_be_shorter(self) -> bool:
        """Whether a controller that dies early has less to do: it was cancelled meanwhile."""
        return self.wish == "cancel at once"

    def spec(self) -> JobSpec:
        limits = {"max_cost": "3 USD", "workers": self.workers, "batch": [96]}
        return spec(**{"limits": limits, "price": PRICE, "level": "observe", **self.document})


CONTROL = {"level": "control", "search": "full"}
SERVERS = {"strategy": {"parameter_server": {"servers": 1}}}

TROUBLES: tuple[tuple[Operation, Fault, int | None], ...] = (
    ("launch", LostResponse(), 1),
    ("launch", Refused("InternalError"), 2),
    ("terminate", Ignored(), None),
    ("terminate", Refused("InternalError"), None),
)

ORDERED = {**CONTROL, "limits": {"max_cost": "3 USD", "workers": "1..2", "batch": [48, 96]}}
ORDERS: tuple[tuple[OrderKind, Mapping[str, Any]], ...] = (
    ("resize", {"to": {"workers": 1, "global_batch": 48}}),
    ("probe", {"workers": 2, "global_batch": 48}),
    ("change", {"limits": {"max_cost": "2.5 USD"}}),
    ("pause", {}),
    ("resume", {}),
)
SEARCH_ORDERS: tuple[tuple[OrderKind, Mapping[str, Any]], ...] = (
    ("probe", {"workers": 2, "global_batch": 48}),
    ("change", {"limits": {"max_cost": "2.5 USD"}, "objective": "fastest"}),
    ("pause", {}),
    ("resume", {}),
    ("resize", {"to": {"workers": 1, "global_batch": 48}}),
)
ORDERS_IN_PAIRS: tuple[tuple[OrderKind, Mapping[str, Any]], ...] = (
    ("resize", {"to": "cheapest"}),
    ("resize", {"to": {"workers": 1, "global_batch": 48}}),
    ("pause", {}),
    ("resume", {}),
    ("probe", {"workers": 2, "global_batch": 48}),
    ("pause", {}),
    ("resume", {}),
    ("change", {"limits": {"max_cost": "2.5 USD"}}),
)

# Two processes of a machine may share a model of four blocks. They have one core, so none is faster
# by what the profile says.
CUT = "P=2 T=1 C=blocks.2"
BLOCKS = tuple(BlockProfile(f"blocks.{place}", 0.001, 0.001, 1e3, 1e4, 1e6) for place in range(4))
PROFILE = LayoutProfile(
    BLOCKS, LinkSpeed(1e-5, 1e10), USUAL_LINK, processes_per_machine=2, concurrent_processes=1
)
LAYOUTS: dict[str, Any] = {
    **CONTROL,
    "limits": {
        "max_cost": "3 USD",
        "workers": "1..2",
        "batch": [96],
        "layout": {"pipeline": "1..2"},
    },
}
LAYOUT_ORDERS: tuple[tuple[OrderKind, Mapping[str, Any]], ...] = (
    ("resize", {"to": {"workers": 2, "global_batch": 96, "stack": "eager"}}),
    ("resize", {"to": {"workers": 2, "global_batch": 96, "stack": CUT}}),
    ("resize", {"to": {"workers": 1, "global_batch": 96, "stack": "eager"}}),
)

SCENARIOS = (
    Scenario("launch", "2..2", JobPhase.SUCCEEDED),
    Scenario("launch-in-vain", "2..2", JobPhase.SUCCEEDED, faults=TROUBLES),
    Scenario("sold-out", "2..2", JobPhase.SUCCEEDED, capacity={"a": 1}),
    Scenario("resize-up", "1..2", JobPhase.SUCCEEDED, document=CONTROL),
    Scenario("resize-down", "1..2", JobPhase.SUCCEEDED, sync={2: 9.0}, document=CONTROL),
    Scenario("terminate", "2..2", JobPhase.CANCELLED, wish="cancel"),
    Scenario("terminate-early", "2..2", JobPhase.CANCELLED, wish="cancel at once", lag=12.0),
    Scenario("recover", "2..2", JobPhase.SUCCEEDED, interrupts=True),
    Scenario("recover-server", "1..1", JobPhase.SUCCEEDED, interrupts=True, document=SERVERS),
    Scenario("orders", "1..2", JobPhase.SUCCEEDED, document=ORDERED, orders=ORDERS),
    Scenario(
        "orders-in-search",
        "1..2",
        JobPhase.SUCCEEDED,
        document=ORDERED,
        orders=SEARCH_ORDERS,
        generations=(2, 4, 5, 5, 6),
    ),
    Scenario(
        "orders-in-pairs",
        "1..2",
        JobPhase.SUCCEEDED,
        document=ORDERED,
        orders=ORDERS_IN_PAIRS,
        at_once=2,
    ),
    Scenario(
        "stacks",
        "1..2",
        JobPhase.SUCCEEDED,
        sync={2: 9.0},
        document={**CONTROL, "stacks": ["eager", "fused", "bf16+fused"], "precision": "any"},
        speeds={"fused": 1.5, "bf16+fused": 3.0},
        refused="bf16+fused",
    ),
    Scenario(
        "layouts",
        "1..2",
        JobPhase.SUCCEEDED,
        document=LAYOUTS,
        speeds={CUT: 3.0},
        profile=PROFILE,
    ),
    Scenario(
        "layouts-by-order",
        "1..2",
        JobPhase.SUCCEEDED,
        document=LAYOUTS,
        speeds={CUT: 3.0},
        profile=PROFILE,
        orders=LAYOUT_ORDERS,
    ),
    Scenario(
        "layouts-refused",
        "1..2",
        JobPhase.SUCCEEDED,
        document=LAYOUTS,
        profile=PROFILE,
        refused=CUT,
    ),
    Scenario("sweep", "1..1", JobPhase.SUCCEEDED, orphans=(1, 5), step=4.0),
)
SPOT = {"machine": {"market": "spot"}}
# Only where the price of a spot machine moves, and its minimum is billed.
RENTED = (Scenario("spot", "2..2", JobPhase.SUCCEEDED, interrupts=True, document=SPOT),)
NAMED = {scenario.name: scenario for scenario in (*SCENARIOS, *RENTED)}


def names_for(cloud: str) -> list[str]:
    """Return the stories that are played in a cloud."""
    return [one.name for one in (SCENARIOS if cloud == "fake" else (*SCENARIOS, *RENTED))]
