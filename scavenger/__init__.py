"""Scavenger chooses how many workers and which global batch a training job should use.

This package is the library: all mathematics, the job document, the wire types of controller and
agent, the REST client and the command line. ``service`` acts on its decisions, ``worker_agent``
measures; both import from here. The names below are the public ones, imported when first used,
because a training container imports the wire types and nothing else::

    from scavenger import ConstrainedObjective, Knee, decide, parse_job, planning_state

    spec = parse_job(text, "yaml")
    decision = decide(planning_state(spec, observations=(), stored=None))

A program that talks to a controller needs the client only::

    with scavenger.Client() as client:
        job = client.wait(client.submit(text).id)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scavenger.client.client import AsyncClient as AsyncClient
    from scavenger.client.client import Client as Client
    from scavenger.client.errors import ClientError as ClientError
    from scavenger.client.errors import ErrorResponse as ErrorResponse
    from scavenger.client.errors import JobEnded as JobEnded
    from scavenger.client.errors import StillRunning as StillRunning
    from scavenger.client.errors import Unreachable as Unreachable
    from scavenger.cluster import ClusterConfig as ClusterConfig
    from scavenger.cluster import ConfigSpace as ConfigSpace
    from scavenger.cluster import MachineType as MachineType
    from scavenger.cluster import MemoryModel as MemoryModel
    from scavenger.errors import InvalidDocument as InvalidDocument
    from scavenger.errors import NotEnoughData as NotEnoughData
    from scavenger.errors import NothingFeasible as NothingFeasible
    from scavenger.errors import ScavengerError as ScavengerError
    from scavenger.job.planning import planning_state as planning_state
    from scavenger.job.spec import JobSpec as JobSpec
    from scavenger.job.validation import parse_job as parse_job
    from scavenger.job.validation import validate_job as validate_job
    from scavenger.measurement.profiling import Measurement as Measurement
    from scavenger.measurement.profiling import Observation as Observation
    from scavenger.measurement.profiling import ScalingIndicators as ScalingIndicators
    from scavenger.measurement.profiling import evaluate_probe as evaluate_probe
    from scavenger.measurement.steps import StepColumns as StepColumns
    from scavenger.models.iteration_time import StepTimeLaw as StepTimeLaw
    from scavenger.models.performance import PerformanceModel as PerformanceModel
    from scavenger.models.performance import fit_performance as fit_performance
    from scavenger.planning.constrained_objective import (
        ConstrainedObjective as ConstrainedObjective,
    )
    from scavenger.planning.curve import TradeoffCurve as TradeoffCurve
    from scavenger.planning.curve import predict_curve as predict_curve
    from scavenger.planning.decision import decide as decide
    from scavenger.planning.knee import Knee as Knee
    from scavenger.planning.objective import Choice as Choice
    from scavenger.planning.objective import Objective as Objective
    from scavenger.planning.objectives import Cheapest as Cheapest
    from scavenger.planning.objectives import Fastest as Fastest
    from scavenger.planning.objectives import Weighted as Weighted
    from scavenger.planning.replanning import replan as replan
    from scavenger.planning.search.strategy import Probe as Probe
    from scavenger.planning.search.strategy import SearchStrategy as SearchStrategy
    from scavenger.planning.search.strategy import TrainOn as TrainOn
    from scavenger.planning.state import PlanningState as PlanningState
    from scavenger.pricing import PriceModel as PriceModel
    from scavenger.pricing import on_demand_price_model as on_demand_price_model

_PUBLIC = {
    "scavenger.client.client": ("AsyncClient", "Client"),
    "scavenger.client.errors": (
        "ClientError",
        "ErrorResponse",
        "JobEnded",
        "StillRunning",
        "Unreachable",
    ),
    "scavenger.cluster": ("ClusterConfig", "ConfigSpace", "MachineType", "MemoryModel"),
    "scavenger.errors": ("InvalidDocument", "NotEnoughData", "NothingFeasible", "ScavengerError"),
    "scavenger.job.planning": ("planning_state",),
    "scavenger.job.spec": ("JobSpec",),
    "scavenger.job.validation": ("parse_job", "validate_job"),
    "scavenger.measurement.profiling": (
        "Measurement",
        "Observation",
        "ScalingIndicators",
        "evaluate_probe",
    ),
    "scavenger.measurement.steps": ("StepColumns",),
    "scavenger.models.iteration_time": ("StepTimeLaw",),
    "scavenger.models.performance": ("PerformanceModel", "fit_performance"),
    "scavenger.planning.curve": ("TradeoffCurve", "predict_curve"),
    "scavenger.planning.decision": ("decide",),
    "scavenger.planning.knee": ("Knee",),
    "scavenger.planning.constrained_objective": ("ConstrainedObjective",),
    "scavenger.planning.objective": ("Choice", "Objective"),
    "scavenger.planning.objectives": ("Cheapest", "Fastest", "Weighted"),
    "scavenger.planning.replanning": ("replan",),
    "scavenger.planning.search.strategy": ("Probe", "SearchStrategy", "TrainOn"),
    "scavenger.planning.state": ("PlanningState",),
    "scavenger.pricing": ("PriceModel", "on_demand_price_model"),
}
_HOMES = {name: module for module, names in _PUBLIC.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'scavenger' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
