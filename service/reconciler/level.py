"""Level: what a job that is only observed or advised does instead of being searched and resized."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from scavenger.cluster import ClusterConfig
from scavenger.decision import Probe
from scavenger.errors import NothingFeasible
from scavenger.indicators import Observation
from scavenger.job import JobSpec
from scavenger.strategy import DownpourSpec
from service.curves import Drawing
from service.knowledge import Knowledge, objective_of
from service.reconciler.action import Advise, Keep
from service.reconciler.snapshot import Snapshot


def is_searched(spec: JobSpec) -> bool:
    """Whether the job's configuration is chosen, rather than given."""
    return spec.level == "control" and not isinstance(spec.strategy, DownpourSpec)


def observe(snapshot: Snapshot) -> Probe | Keep | None:
    """Return what to do with a configuration that is not to be chosen; None where one is.

    It is measured once, since advice rests on that, and then kept. Downpour cannot be measured.
    """
    spec = snapshot.job.spec
    start = spec.space.start
    if isinstance(spec.strategy, DownpourSpec):
        return Keep(start, f"downpour is not searched: training on {start}")
    if spec.level == "control":
        return None
    if any(probe.observation.config == start for probe in snapshot.probes):
        return Keep(start, f"level {spec.level}: the job stays on {start}")
    return Probe(start, f"level {spec.level}: measuring {start}", measures="noise")


def advise(snapshot: Snapshot) -> Advise | None:
    """Say what a job that is advised would choose, each time that has changed."""
    job = snapshot.job
    if job.spec.level != "advise" or job.chosen is None:
        return None
    advice = answer(ask(snapshot.knowledge))
    if advice is None or (job.advice is not None and job.advised == advice.config):
        return None
    drawing = Drawing.of(job.spec, advice.knowledge.sketch())
    return Advise(advice.config, advice.why, drawing)


@dataclass(frozen=True, slots=True)
class Question:
    """All that advice depends on.

    Attributes:
        document: The job, as JSON.
        jobs: How many earlier jobs are known.
    """

    document: str
    observations: tuple[Observation, ...]
    noise_scale: float | None
    history: tuple[tuple[float, float], ...]
    jobs: int
    knowledge: Knowledge = field(compare=False, repr=False)


def ask(knowledge: Knowledge) -> Question:
    """Ask what a job would choose by what is known of it."""
    stored = knowledge.stored
    earlier = (*knowledge.models, *(() if stored is None else (stored,)))
    return Question(
        knowledge.spec.model_dump_json(),
        knowledge.observations,
        knowledge.noise_scale,
        knowledge.history,
        sum(model.jobs for model in earlier),
        knowledge,
    )


@dataclass(frozen=True, slots=True)
class Advice:
    """What a job would choose; None when nothing meets the limits.

    Attributes:
        knowledge: What that follows from.
    """

    config: ClusterConfig | None
    why: str
    knowledge: Knowledge


@lru_cache(maxsize=1024)  # all jobs ask at every tick, and drawing a curve takes a while
def answer(question: Question) -> Advice | None:
    """Choose from the curve as it can be drawn now; None while nothing tells."""
    knowledge = question.knowledge
    sketch = knowledge.sketch()
    if sketch is None:
        return None
    try:
        choice = objective_of(knowledge.spec).choose(sketch.curve)
    except NothingFeasible as error:
        return Advice(None, f"no advice, since {error}", knowledge)
    config = choice.point.config
    return Advice(config, f"advice: {config}, {choice.why}", knowledge)
