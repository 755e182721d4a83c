"""What a job teaches the next one, and its own plan, on a real database."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Engine, insert

from scavenger.cluster import ClusterConfig
from scavenger.models.epochs import FinishedRun
from scavenger.models.iteration_time import StepTimeLaw
from scavenger.planning.decision import fit_model, preview_curve
from scavenger.planning.transfer import StoredModel
from service.clouds.clouds import Clouds
from service.clouds.labels import ResourceLabels
from service.db import clock, jobs, measurements, stored_models
from service.db.schema import models as table
from service.reconciler.actions import ChooseConfig, Replan
from service.reconciler.apply import record_action
from service.reconciler.fleet import Fleet
from service.reconciler.loop import ReconcilerLoop
from service.reconciler.plan import plan
from service.reconciler.tick import Reconciler
from tests.builders import CONTACT, NOW, document, probe, steps
from tests.fakecloud.provider import FakeCloudProvider
from tests.integration.life import CORNERS, Life, numbered

WORDS = "accuracy >= 0.97"

# As version 0.1.0 stored it.
OLD = {
    "signature": "digits|1437|none|local",
    "model": {
        "parallel": {
            "compute_fixed": 0.001,
            "compute_per_sample": 0.001,
            "sync_fixed": 0.002,
            "sync_per_worker": 0.001,
        },
        "statistical": {"critical_batch": 200.0, "noise_scale": 200.0},
        "dataset_size": 1437,
        "reference_batch": 32,
        "epochs_at_reference": None,
    },
    "observations": [
        {
            "config": {"workers": workers, "global_batch": batch},
            "indicators": {
                "noise": 1.5,
                "noise_scale": 200.0,
                "compute_time": 0.001 + 0.001 * batch / workers,
                "sync_time": 0.0 if workers == 1 else 0.004,
            },
            "iterations": 20,
        }
        for workers, batch in CORNERS
    ],
    "epochs_by_target": {WORDS: 20.0},
    "jobs": 3,
}


def test_a_run_to_a_metric_teaches_its_epochs_at_the_batch_it_mostly_trained_at(
    engine: Engine,
) -> None:
    small, large = ClusterConfig(2, 32), ClusterConfig(2, 128)
    with engine.begin() as connection:
        life = Life(connection)
        life.probe()
        life.train(1, small, numbered(0, 200, small))
        life.train(2, large, numbered(200, 300, large))
        life.choose(large)
        life.finish()
        (run,) = life.stored().runs[WORDS]
    # Epochs go with 1 + B/200, so what was done at 32 counts for more at 128.
    converted = 200 * 32 / 1437 * (1 + 128 / 200) / (1 + 32 / 200)
    assert run.global_batch == 128
    assert run.epochs == pytest.approx(300 * 128 / 1437 + converted)


def test_iterations_done_twice_count_where_they_were_done_last(engine: Engine) -> None:
    small, large = ClusterConfig(2, 32), ClusterConfig(2, 128)
    with engine.begin() as connection:
        life = Life(connection)
        life.probe()
        life.train(1, small, numbered(0, 200, small))
        life.train(2, large, numbered(0, 300, large))
        life.choose(large)
        life.finish()
        (run,) = life.stored().runs[WORDS]
    assert run == FinishedRun(128, 300 * 128 / 1437)


def test_a_run_of_so_many_epochs_teaches_nothing_about_epochs(engine: Engine) -> None:
    config = ClusterConfig(2, 128)
    with engine.begin() as connection:
        life = Life(connection, target={"epochs": 10, "at_batch": 32})
        life.probe()
        life.train(1, config, numbered(0, 300, config))
        life.choose(config)
        life.finish()
        assert life.stored().runs == {}


def test_the_newest_runs_of_all_jobs_are_kept(engine: Engine) -> None:
    with engine.begin() as connection:
        life = Life(connection)
        life.probe()
        preview = preview_curve(life.look().knowledge)
    assert preview is not None
    fresh = StoredModel("s", preview.fitted.model, preview.fitted.observations, {WORDS: 9.0}, 1)
    stored = None
    for number in range(1, 41):
        stored = stored_models.merge_job(
            stored, replace(fresh, runs={WORDS: (FinishedRun(32, number),)})
        )
    assert stored is not None
    assert [run.epochs for run in stored.runs[WORDS]] == list(range(9, 41))
    adapter = stored_models.STORED_MODEL
    assert adapter.validate_json(adapter.dump_json(stored)) == stored


def test_a_model_that_an_older_version_stored_still_serves(engine: Engine) -> None:
    with engine.begin() as connection:
        row = {"signature": OLD["signature"], "model_key": "digits", "model": OLD, "jobs": 3}
        row["project"] = "default"
        connection.execute(insert(table).values(**row, updated_at=NOW))
        life = Life(connection)
        action = plan(life.look())
        assert isinstance(action, ChooseConfig)
        assert action.why.startswith("no search: model of 3 earlier jobs")
        record_action(connection, "local", life.look(), action)
        life.train(1, action.run.config, numbered(0, 100, action.run.config))
        life.finish()
        stored = life.stored()
    assert stored.jobs == 4
    assert stored.epochs_by_target == {WORDS: 10.0}
    assert len(stored.runs[WORDS]) == 1


def test_a_model_stored_before_fits_said_what_they_left_open_is_doubted(engine: Engine) -> None:
    with engine.begin() as connection:
        row = {"signature": OLD["signature"], "model_key": "digits", "model": OLD, "jobs": 3}
        row["project"] = "default"
        connection.execute(insert(table).values(**row, updated_at=NOW))
        found = stored_models.find(connection, "default", "digits|1437|none|local")
        listed = stored_models.newest(connection, "default")[0].model
    assert found == listed
    assert found is not None
    assert found.model.parallel.spread is not None
    assert found.model.parallel.step_time(ClusterConfig(2, 64)) == pytest.approx(0.037, rel=0.05)
    assert found.model.statistical.critical_batch == 200
    assert found.model.statistical.critical_deviation > 0
    bare = replace(
        found,
        model=replace(found.model, parallel=StepTimeLaw(0.1, 0.1, 0.1, 0.1)),
        observations=(),
    )
    assert stored_models.with_uncertainty(bare) == bare


def test_what_was_read_before_is_read_again_only_when_it_changed(engine: Engine) -> None:
    def kept() -> dict[str, StoredModel]:
        with engine.connect() as connection:
            return {
                model.signature: model for model in stored_models.recent(connection, "default", 2)
            }

    others = [
        replace(stored_models.STORED_MODEL.validate_python(OLD), signature=name) for name in "abc"
    ]
    with engine.begin() as connection:
        for number, model in enumerate(others):
            stored_models.store(
                connection, "default", "digits", model, NOW + timedelta(seconds=number)
            )
    first = kept()
    assert list(first) == ["c", "b"]
    assert first["c"] == stored_models.with_uncertainty(others[2])
    assert all(kept()[name] is model for name, model in first.items())
    with engine.begin() as connection:  # at the same moment, twice
        for jobs_seen in (7, 8):
            changed = replace(others[1], jobs=jobs_seen)
            stored_models.store(
                connection, "default", "digits", changed, NOW + timedelta(seconds=1)
            )
            found = {
                model.signature: model.jobs
                for model in stored_models.recent(connection, "default", 2)
            }
            assert found == {"c": 3, "b": jobs_seen}
        connection.rollback()
    assert kept()["b"].jobs == 3
    assert kept()["c"] is first["c"]


def test_a_job_that_went_on_waiting_is_planned_anew_in_the_same_pass(engine: Engine) -> None:
    """What it waits for is taken back first, and the noise is looked at now and then only."""
    small, rich = ClusterConfig(2, 32), {**document()["limits"], "max_cost": "1000000 USD"}
    with engine.begin() as connection:
        target = {"metric": "accuracy", "goal": 0.97, "max_epochs": 600}
        life = Life(connection, target=target, limits=rich)
        life.probe()
        life.train(1, small, steps(200, 640.0, small))
        life.choose(small)
        jobs.change_outcome(connection, life.job, waiting="for better days")
    cloud = FakeCloudProvider("http://nowhere", "ours")
    owner = ResourceLabels("ours", b"secret")
    fleet = Fleet(engine, Clouds([cloud]), CONTACT, owner)
    ReconcilerLoop(Reconciler(fleet, clock.now(engine)))._pass()
    cloud.close()
    with engine.connect() as connection:
        kinds = [event.kind for event in jobs.events_after(connection, life.job, 0, 99)]
        assert kinds.count("drift") == 1, kinds
        assert kinds.count("resumed") == 1, kinds


def test_a_drift_is_planned_anew_once_and_remembered(engine: Engine) -> None:
    small = ClusterConfig(2, 32)
    minute = timedelta(minutes=1)
    with engine.begin() as connection:
        target = {"metric": "accuracy", "goal": 0.97, "max_epochs": 600}
        life = Life(connection, target=target)
        life.probe()
        life.train(1, small, steps(200, 640.0, small))
        life.choose(small)
        assert not isinstance(plan(life.look(-2 * minute)), Replan)
        action = plan(life.look())
        assert isinstance(action, Replan)
        record_action(connection, "local", life.look(), action)
        after = life.look(minute)
        assert after.job.chosen == action.config == ClusterConfig(2, 128)
        assert after.job.choice == action.why
        newest = measurements.newest_drifts(connection, [life.job]).get(life.job)
        assert newest is not None
        assert after.knowledge.drifted_noise_scale == newest.noise_scale == pytest.approx(640)
        assert not isinstance(plan(after), Replan)
        before, now = probe(1, 32).observation, fit_model(after.knowledge)
    assert before.indicators.noise_scale == 200
    assert now is not None
    assert now.model.statistical.noise_scale == pytest.approx(640)
    assert now.model.statistical.critical_batch == pytest.approx(640)
