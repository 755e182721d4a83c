"""Workers say what they train with; stored models are read and written accordingly."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, Engine

from scavenger.cluster import ClusterConfig
from scavenger.protocol import Hello
from scavenger.schemas.jobs import JobPhase
from service.db import jobs, stored_models, workers
from service.reconciler.actions import ChooseConfig, NoteFramework, PublishDirective
from service.reconciler.apply import record_action
from service.reconciler.plan import plan
from tests.builders import NOW
from tests.integration.life import Life

TENSORFLOW = "digits|1437|none|local||tensorflow"


def tell(life: Life, framework: str) -> None:
    hello = Hello(life.worker(1), "127.0.0.1:9001", framework=framework)
    workers.record_hello(life.connection, life.job, hello, NOW)


def teach_pytorch(connection: Connection) -> None:
    """Let a job with PyTorch reach its target."""
    life = Life(connection, "job_0")
    life.probe()
    chosen = plan(life.look())
    assert isinstance(chosen, ChooseConfig)
    record_action(connection, "local", life.look(), chosen)
    life.finish()


def events(engine: Engine) -> list[tuple[str, str]]:
    """Return the events of a job; they get their numbers at the commit."""
    with engine.connect() as connection:
        return [(e.kind, e.message) for e in jobs.events_after(connection, "job_1", 0, 100)]


def test_a_choice_by_times_of_pytorch_is_searched_anew_where_tensorflow_trains(
    engine: Engine,
) -> None:
    with engine.begin() as connection:
        teach_pytorch(connection)
        life = Life(connection)
        chosen = plan(life.look())
        assert isinstance(chosen, ChooseConfig)
        assert not chosen.run.searched
        record_action(connection, "local", life.look(), chosen)
        tell(life, "tensorflow")
        noted = plan(life.look())
        assert isinstance(noted, NoteFramework)
        record_action(connection, "local", life.look(), noted)
        seen = life.look()
        assert (seen.job.framework, seen.job.chosen, seen.job.choice) == ("tensorflow", None, None)
        assert seen.job.phase is JobPhase.TRAINING
        assert seen.knowledge.stored is None
        assert seen.knowledge.is_noise_known, "PyTorch lends it"
        assert seen.knowledge.recorded_epochs == 10.0
        probe = plan(seen)
        assert isinstance(probe, PublishDirective)
        assert (probe.directive.purpose, probe.directive.is_provisional) == ("probe", False)
        record_action(connection, "local", seen, probe)
        assert life.look().job.phase is JobPhase.PROBING
        life.probe()
        again = plan(life.look())
        assert isinstance(again, ChooseConfig)
        record_action(connection, "local", life.look(), again)
        known = stored_models.find(connection, "default", TENSORFLOW)
        assert known is not None
        assert known.jobs == 1
    assert ("framework", noted.why) in events(engine)


def test_pytorch_is_noted_without_a_word_and_what_was_chosen_stays(engine: Engine) -> None:
    with engine.begin() as connection:
        life = Life(connection)
        life.choose(ClusterConfig(2, 128))
        tell(life, "pytorch")
        noted = plan(life.look())
        assert isinstance(noted, NoteFramework)
        record_action(connection, "local", life.look(), noted)
        assert life.look().job.framework == "pytorch"
        assert life.look().job.chosen == ClusterConfig(2, 128)
        tell(life, "tensorflow")
        assert not isinstance(plan(life.look()), NoteFramework), "one framework trains a job"
    assert "framework" not in [kind for kind, _ in events(engine)]


@pytest.mark.parametrize("declared", ["pytorch", "tensorflow"])
def test_a_contradiction_to_the_document_is_an_event(engine: Engine, declared: str) -> None:
    with engine.begin() as connection:
        life = Life(connection, framework=declared)
        tell(life, "tensorflow")
        noted = plan(life.look())
        assert isinstance(noted, NoteFramework)
        assert noted.is_news == (declared == "pytorch")
        record_action(connection, "local", life.look(), noted)
    said = [text for kind, text in events(engine) if kind == "framework"]
    assert len(said) == int(declared == "pytorch")
    assert all("correct the document" in text for text in said)


def test_the_supervisor_of_a_dead_process_takes_nothing_back(engine: Engine) -> None:
    with engine.begin() as connection:
        life = Life(connection)
        tell(life, "tensorflow")
        tell(life, "")
        assert life.look().workers[0].framework == "tensorflow"


def test_a_plan_for_a_declared_framework_lends_what_the_other_one_measured(engine: Engine) -> None:
    with engine.begin() as connection:
        teach_pytorch(connection)
        known = Life(connection, framework="tensorflow").look().knowledge
        assert known.stored is None
        assert known.lent == "noise and epochs of 1 earlier job with pytorch"
