"""Values that many tests need, each with the one field that matters to the test changed."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from scavenger.cluster import ClusterConfig
from scavenger.job.planning import objective_within_limits, planning_state
from scavenger.job.spec import JobSpec
from scavenger.job.validation import validate_job
from scavenger.learning_rate import LearningRateScaling
from scavenger.measurement.profiling import Observation, ScalingIndicators
from scavenger.measurement.steps import StepColumns
from scavenger.protocol import Directive, Member, StopAtMetric
from scavenger.report import CurveReport
from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.machines import OrphanView
from scavenger.schemas.orders import WISHES, OrderKind
from scavenger.schemas.plans import PlanView
from service.clouds.clouds import Clouds
from service.clouds.local import LocalProvider
from service.clouds.provider import Boot
from service.db.jobs import StoredJob
from service.db.measurements import SettledProbe
from service.db.orders import StoredOrder
from service.db.vms import Vm
from service.db.workers import WorkerRow
from service.offers import BillingTerms, Offer
from service.reconciler.fleet import ControllerContact
from service.state.curves import curve_view
from service.state.job_state import JobState
from service.state.orders import fold_orders

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
STOP = StopAtMetric("accuracy", 0.97, "at_least", 60.0)
HERE = Clouds([LocalProvider(Path("/nowhere"), sys.executable)])
CONTACT = ControllerContact("http://127.0.0.1:9", "token-of-{}".format)


def boot(**changes: Any) -> Boot:
    """Return what a machine is launched with."""
    told = {"controller": CONTACT.address, "token": "token", "job": "job-1", "worker": "key-1"}
    return Boot(**{**told, "prepaid": 60.0, **changes})


def document(**changes: Any) -> dict[str, Any]:
    """A job document as JSON, with top-level keys replaced."""
    return {
        "model": {"key": "digits", "dataset_size": 1437},
        "target": {"metric": "accuracy", "goal": 0.97, "max_epochs": 60},
        "limits": {"max_cost": "1 USD", "workers": "1..2", "batch": [32, 128]},
        "price": "0.36 USD/h",
        "run": {"command": ["python", "train.py"]},
        **changes,
    }


def spec(**changes: Any) -> JobSpec:
    return validate_job(document(**changes))


def job(**changes: Any) -> StoredJob:
    facts: dict[str, Any] = {
        "id": "job_1",
        "name": "digits",
        "spec": spec(),
        "created_at": NOW - timedelta(minutes=5),
        "cancel_requested_at": None,
        "phase": JobPhase.TRAINING,
        "reason": "",
        "search": "",
        "chosen": None,
        "choice": None,
        "advised": None,
        "advice": None,
        "worker_exit_code": None,
        "epochs_to_target": None,
        "finished_at": None,
    }
    return StoredJob(**{**facts, **changes})


def plan_view(**changes: Any) -> PlanView:
    """A plan of a job that a search would choose for; nothing is known of its curve."""
    report = CurveReport.of(objective_within_limits(spec()), None)
    facts = {
        "id": "plan_0",
        "created_at": NOW,
        "expires_at": NOW + timedelta(minutes=15),
        "name": "digits",
        "model_key": "digits",
        "curve": curve_view(report, spec(), None, "nothing is measured yet", NOW),
        "choice": None,
        "why": "a search chooses",
        "search": {"probes": 4, "seconds": None, "cost": None},
        "cap": {"amount": "1"},
        "checks": [],
        "prices_as_of": None,
        "would_reuse": 0,
    }
    return PlanView.model_validate(facts | changes)


def vm(number: int, **changes: Any) -> Vm:
    machine = Vm(
        id=f"w{number}",
        job="job_1",
        role="worker",
        launch_key=f"key-{number}",
        state="launched",
        provider_id=f"provider-{number}",
        cloud="local",
        zone="",
        machine_type="local",
        market="on_demand",
        image="",
        price_per_hour=Decimal("0.36"),
        quantum=0.0,
        minimum=0.0,
        prepaid=360.0,
        intended_at=NOW - timedelta(minutes=1),
        began_at=NOW - timedelta(minutes=1),
        attempted_at=NOW - timedelta(minutes=1),
        open_asks=1,
        refusal=None,
        refusal_label=None,
        stamp=None,
        missed_at=None,
        ordered_at=None,
        orders=0,
        ended_at=None,
        prepaid_until=NOW + timedelta(minutes=5),
        exit_code=None,
        tail="",
    )
    return replace(machine, **changes)


def offer(price: str = "0.36", **changes: Any) -> Offer:
    """A machine of this computer."""
    terms = BillingTerms(Decimal(price))
    return replace(Offer("local", "", "local", "on_demand", "", terms), **changes)


def server(number: int, **changes: Any) -> Vm:
    return vm(number, **{"id": f"s{number}", "role": "server", **changes})


def serving(number: int, **changes: Any) -> WorkerRow:
    """What a parameter server said when it was up, and not a word since."""
    hello_at = NOW - timedelta(seconds=55)
    quiet = {"worker": f"s{number}", "generation": 0, "iteration": 0, "samples": 0, "epochs": 0.0}
    return worker(number, **{**quiet, "hello_at": hello_at, "seen_at": hello_at, **changes})


def worker(number: int, **changes: Any) -> WorkerRow:
    agent = WorkerRow(
        worker=f"w{number}",
        job="job_1",
        address=f"127.0.0.1:{9000 + number}",
        generation=1,
        iteration=100,
        samples=3200,
        epochs=2.0,
        metrics={},
        broken=None,
        refused=None,
        finished=None,
        next_sequence=0,
        hello_at=NOW - timedelta(seconds=50 - number),
        seen_at=NOW - timedelta(seconds=0.5),
    )
    return replace(agent, **changes)


def directive(workers: int, global_batch: int, **changes: Any) -> Directive:
    facts: dict[str, Any] = {
        "generation": 1,
        "config": ClusterConfig(workers, global_batch),
        "members": tuple(Member(f"w{n}", f"127.0.0.1:{9000 + n}") for n in range(1, workers + 1)),
        "purpose": "train",
        "progress_per_iteration": 0.02,
        "learning_rate": LearningRateScaling(),
        "stop": STOP,
        "split_every": 25,
        "report_after": 0,
        "why": "",
    }
    return Directive(**{**facts, **changes})


def observation(workers: int, global_batch: int, **changes: Any) -> Observation:
    """A job with compute 1 ms + 1 ms per sample and sync 2 ms + 1 ms per worker."""
    config = ClusterConfig(workers, global_batch)
    indicators = ScalingIndicators(
        noise=1.5,
        noise_scale=200.0,
        compute_time=0.001 + 0.001 * config.local_batch,
        sync_time=0.0 if workers == 1 else 0.002 + 0.001 * workers,
    )
    return Observation(config, replace(indicators, **changes), 20)


def probe(workers: int, global_batch: int) -> SettledProbe:
    return SettledProbe(observation(workers, global_batch), 2.0, Decimal("0.0002"), NOW)


def snapshot(**changes: Any) -> JobState:
    """A job that trains on two workers with B = 128, both well."""
    chosen = ClusterConfig(2, 128)
    facts: dict[str, Any] = {
        "now": NOW,
        "job": job(chosen=chosen, choice="the knee"),
        "vms": (vm(1), vm(2)),
        "workers": (worker(1), worker(2)),
        "directive": directive(2, 128),
        "published_at": NOW - timedelta(seconds=30),
        "probes": (),
        "drifted": None,
        "steps": StepColumns(),
        "knowledge": None,
        "places": (offer(),),
        **changes,
    }
    if facts["knowledge"] is None:
        own = tuple(p.observation for p in facts["probes"])
        facts["knowledge"] = planning_state(facts["job"].spec, own, None)
    return JobState(**facts)


def order(number: int, kind: OrderKind, wish: dict[str, Any], **changes: Any) -> StoredOrder:
    """An order of a minute ago, which is still to be obeyed."""
    read = WISHES[kind].model_validate(wish)
    asked = StoredOrder("job_1", number, kind, read, "", "token", NOW - timedelta(minutes=1))
    return replace(asked, **changes)


def ordered(state: JobState, *orders: StoredOrder) -> JobState:
    """Return a state whose job has these orders, as the loader does."""
    standing = fold_orders(orders)
    changed = replace(state.job, spec=standing.apply_to(state.job.spec))
    own = tuple(probe.observation for probe in state.probes)
    known = planning_state(standing.prefer_in(changed.spec), own, None)
    return replace(state, job=changed, knowledge=known, standing=standing)


def steps(rows: int, noise_scale: float, config: ClusterConfig) -> StepColumns:
    """Rows of a generation whose gradients have this noise scale, each worker one shard."""
    return StepColumns(
        iteration=tuple(range(rows)),
        shards=(config.workers,) * rows,
        local_norm_sq=(1 + noise_scale / config.local_batch,) * rows,
        mean_norm_sq=(1 + noise_scale / config.global_batch,) * rows,
        compute_time=(0.01,) * rows,
        sync_time=(0.001,) * rows,
        step_time=(0.011,) * rows,
        loss=(None,) * rows,
    )


def orphan(
    machine: str, launch_key: str, job: str, fate: str, reason: str, since: datetime | None
) -> OrphanView:
    return OrphanView(
        machine=machine, launch_key=launch_key, job=job, fate=fate, reason=reason, since=since
    )
