"""Record: what a tick decided, written down with its sentence in one transaction."""

from __future__ import annotations

from typing import assert_never

from sqlalchemy import Connection

from scavenger.cluster import ClusterConfig
from scavenger.indicators import Observation
from scavenger.protocol import Directive
from scavenger.view import Phase
from service import ledger, meters
from service.curves import Drawing, show_drawing
from service.db import curves, directives, drifts, jobs, observations, readings
from service.db.drifts import Drifted
from service.db.events import say
from service.db.observations import Probe
from service.knowledge import objective_of
from service.reconciler.action import (
    Action,
    Advise,
    Choose,
    Finish,
    Keep,
    Learn,
    Publish,
    Recorded,
    Replan,
    Resume,
    Wait,
)
from service.reconciler.due import due
from service.reconciler.lesson import remember
from service.reconciler.snapshot import Snapshot


def record(
    connection: Connection,
    machine: str,
    snapshot: Snapshot,
    action: Recorded,
) -> None:
    """Write down a decision and its sentence in one transaction."""
    job, now = snapshot.job.id, snapshot.now
    match action:
        case Publish(directive, why):
            correct(connection, snapshot, directive)
            directives.publish(connection, job, directive, now)
            meters.RESIZES.labels("ordered").inc()
            if directive.purpose == "probe":
                jobs.change_outcome(connection, job, phase=Phase.PROBING, reason=why, search=why)
            say(connection, job, now, "resize", why, config_of(action))
        case Learn(settled, why):
            observations.record(connection, job, booked(snapshot, settled.observation))
            say(connection, job, now, "probe", why, config_of(action))
        case Choose():
            choose(connection, machine, snapshot, action)
        case Keep():
            keep(connection, machine, snapshot, action)
        case Advise(config, why, drawing):
            jobs.change_outcome(connection, job, advised=config, advice=why)
            draw(connection, snapshot, drawing, snapshot.job.chosen, why)
            say(connection, job, now, "advice", why, config_of(action))
        case Replan():
            choose_again(connection, snapshot, action)
        case Wait(why):
            jobs.change_outcome(connection, job, waiting=why)
            say(connection, job, now, "waiting", why)
        case Resume(why):
            jobs.change_outcome(connection, job, waiting=None)
            say(connection, job, now, "resumed", why)
        case Finish():
            finish(connection, machine, snapshot, action)
        case _:
            assert_never(action)


def correct(connection: Connection, snapshot: Snapshot, directive: Directive) -> None:
    """Count the learning curve anew, as the workers do what they trained, once noise has settled.

    All of it was provisional until then; later Directives say the same correction again.
    """
    before = snapshot.directive
    is_first = before is not None and before.is_provisional and not directive.is_provisional
    if is_first and directive.correction != 1:
        readings.rescale(connection, snapshot.job.id, directive.correction)


def draw(
    connection: Connection,
    snapshot: Snapshot,
    drawing: Drawing,
    chosen: ClusterConfig | None,
    why: str,
) -> None:
    """Keep the curve that something was chosen from."""
    job = snapshot.job
    curves.store(connection, job.id, show_drawing(drawing, job.spec, chosen, why), snapshot.now)


def choose_again(connection: Connection, snapshot: Snapshot, action: Replan) -> None:
    """Write down that the noise scale has drifted, and what was chosen instead, if anything was."""
    job, now, why, config = snapshot.job.id, snapshot.now, action.why, action.config
    drifts.record(connection, job, Drifted(now, action.noise_scale))
    if config is not None:
        reason = f"training on {config}"
        jobs.change_outcome(connection, job, reason=reason, chosen=config, choice=why)
    if action.drawing is not None:
        draw(connection, snapshot, action.drawing, config, why)
    say(connection, job, now, "drift", why, config_of(action))


def choose(connection: Connection, machine: str, snapshot: Snapshot, action: Choose) -> None:
    """Fix the configuration that was chosen, and when the job should end on it."""
    job, run, why = snapshot.job.id, action.run, action.why
    foreseen = due(snapshot, run)
    jobs.change_outcome(
        connection,
        job,
        phase=Phase.TRAINING,
        due_from=None if foreseen is None else foreseen.since,
        due_until=None if foreseen is None else foreseen.until,
        reason=f"training on {run.config}",
        search=why if not run.searched else f"searched: {len(snapshot.probes)} probes",
        chosen=run.config,
        choice=why,
    )
    sketch, wish = snapshot.knowledge.sketch_of(run), objective_of(snapshot.job.spec)
    draw(connection, snapshot, Drawing(sketch, wish, run.choice), run.config, why)
    if run.searched:
        remember(connection, machine, snapshot)
    say(connection, job, snapshot.now, "choice", why, config_of(action))


def keep(connection: Connection, machine: str, snapshot: Snapshot, action: Keep) -> None:
    """Fix a configuration that nobody chose; what was measured of it teaches as any probe does."""
    job, why, config = snapshot.job.id, action.why, action.config
    jobs.change_outcome(
        connection,
        job,
        phase=Phase.TRAINING,
        reason=f"training on {config}",
        search=why,
        chosen=config,
        choice=why,
    )
    drawing = Drawing.of(snapshot.job.spec, snapshot.knowledge.sketch())
    draw(connection, snapshot, drawing, config, why)
    remember(connection, machine, snapshot)
    say(connection, job, snapshot.now, "choice", why, config_of(action))


def finish(connection: Connection, machine: str, snapshot: Snapshot, action: Finish) -> None:
    """Write the outcome, once; a reached target teaches how many epochs it takes."""
    job, now = snapshot.job.id, snapshot.now
    jobs.change_outcome(
        connection,
        job,
        phase=action.phase,
        reason=action.why,
        worker_exit_code=action.exit_code,
        epochs_to_target=action.epochs,
        diverged=action.has_diverged,
        finished_at=now,
        waiting=None,
    )
    if action.phase is Phase.SUCCEEDED:
        remember(connection, machine, snapshot, action.epochs)
    facts = {"exit_code": action.exit_code, "epochs": action.epochs}
    known = {name: fact for name, fact in facts.items() if fact is not None}
    say(connection, job, now, str(action.phase), action.why, known)


def booked(snapshot: Snapshot, observation: Observation) -> Probe:
    """Price a settled probe: its time, and what the machines cost meanwhile.

    It began with its Directive, or where that goes on for another probe, when the one before ended.
    """
    since = snapshot.published_at or snapshot.now
    if snapshot.probes:
        since = max(since, snapshot.probes[-1].settled_at)
    before = ledger.accrued(snapshot.vms, since)
    return Probe(
        observation,
        seconds=(snapshot.now - since).total_seconds(),
        cost=snapshot.accrued - before,
        settled_at=snapshot.now,
    )


def config_of(action: Action) -> dict[str, object]:
    """Return what an event about an action carries besides its sentence."""
    match action:
        case Publish(directive, _):
            return {"generation": directive.generation, **shape_of(directive.config)}
        case Choose(run, _):
            return shape_of(run.config)
        case Keep(config, _):
            return shape_of(config)
        case Advise(config, _, _):
            return {} if config is None else shape_of(config)
        case Replan(config, noise_scale, _, _):
            moved = {} if config is None else shape_of(config)
            return {"noise_scale": noise_scale, **moved}
        case Learn(settled, _):
            indicators = settled.observation.indicators
            return {
                **shape_of(settled.observation.config),
                "noise": indicators.noise,
                "noise_scale": indicators.noise_scale,
                "compute_time": indicators.compute_time,
                "sync_time": indicators.sync_time,
            }
        case _:
            return {}


def shape_of(config: ClusterConfig) -> dict[str, object]:
    """Return a configuration as events carry it."""
    return {"workers": config.workers, "global_batch": config.global_batch}
