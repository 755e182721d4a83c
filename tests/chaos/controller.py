"""Controller: the policy of ``service.reconciler.plan``, sped up, over a conductor.

It sees a worker's end only after a while, ends members that are silent while others speak, though
their machines may take a while to go, and orders the survivors on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from scavenger.cluster import ClusterConfig
from scavenger.learning_rate import LearningRateScaling
from scavenger.protocol import Directive, FinishReason, Member
from scavenger.stack import EAGER_NAME
from tests.chaos.networks import SAMPLES
from tests.chaos.sandblaster import SETTINGS
from tests.chaos.script import Script
from tests.conductor import Conductor

SILENCE = 2.2
BREATH = 1.0
FAREWELL = 1.0
UNKNOWN = 0


@dataclass
class Known:
    """What the controller has heard of a worker."""

    generation: int = 0
    broken: int | None = None
    refused: int | None = None
    finished: FinishReason | None = None
    notice_at: float | None = None


@dataclass
class Target:
    """What the plan wants now; the dismissed are to be replaced, others may be kept to stand by."""

    workers: int
    global_batch: int
    stack: str = EAGER_NAME
    keeps: bool = False
    dismissed: set[str] = field(default_factory=set)

    def has_batch_and_stack_of(self, directive: Directive) -> bool:
        """Whether a Directive trains with the batch and the stack that are wanted."""
        config = directive.config
        return (config.global_batch, config.stack) == (self.global_batch, self.stack)


class Controller:
    """Makes of the workers that live what the target says, one action at a time.

    Attributes:
        lost: Workers that count as gone, whether they are or not.
        condemned: Workers to be killed, and when.
        published: Every Directive that was sent out, and when.
        advanced_at: When a worker last reported an iteration that none had reported before.
    """

    def __init__(self, conductor: Conductor, script: Script, random: Random) -> None:
        self.conductor, self.script, self.random = conductor, script, random
        self.target = Target(0, 0)
        self.known: dict[str, Known] = {}
        self.lost: set[str] = set()
        self.condemned: dict[str, float] = {}
        self.published: list[tuple[float, Directive]] = []
        self.hears_since = time.monotonic()
        self.read = 0
        self.places: set[tuple[int, int]] = set()
        self.advanced_at = time.monotonic()
        self.silenced = 0
        self.began = time.monotonic()

    @property
    def directive(self) -> Directive | None:
        """The newest Directive."""
        return self.conductor.directive

    @property
    def members(self) -> tuple[Member, ...]:
        """Members of the newest Directive, leader first."""
        return () if self.directive is None else self.directive.members

    @property
    def alive(self) -> list[str]:
        """Workers that take part or may yet."""
        return [w for w, k in self.known.items() if w not in self.lost and k.finished is None]

    @property
    def available(self) -> list[str]:
        """Workers that live and that no step replaces."""
        return [worker for worker in self.alive if worker not in self.target.dismissed]

    @property
    def is_done(self) -> bool:
        """Whether a worker has seen the end of training."""
        return any(known.finished in ("target", "exhausted") for known in self.known.values())

    @property
    def is_applied(self) -> bool:
        """Whether every member that lives has confirmed the newest Directive."""
        directive = self.directive
        if directive is None:
            return True
        members = [m.worker for m in directive.members if m.worker in self.alive]
        return all(self.known[m].generation >= directive.generation for m in members)

    def tick(self, now: float) -> None:
        """Do the most urgent thing."""
        with self.conductor.news:
            self._read_reports()
            self._notice_ends(now)
            self._execute(now)
            if self.is_done:
                return
            concerns: tuple[Callable[[float], bool], ...] = (
                self._condemn_silent,
                self._leave_lost_behind,
                self._form_anew,
                self._back_off,
                self._grow,
                self._resize,
                self._trim,
            )
            any(concern(now) for concern in concerns)

    # What is known.

    def _read_reports(self) -> None:
        for report in self.conductor.reports[self.read :]:
            place = report.progress.generation, report.progress.iteration
            if place not in self.places:
                self.places.add(place)
                self.advanced_at = time.monotonic()
            known = self.known[report.worker]
            known.generation = report.progress.generation
            known.broken, known.refused = report.broken, report.refused
            known.finished = known.finished or report.finished
        self.read = len(self.conductor.reports)

    def _notice_ends(self, now: float) -> None:
        for worker in self.alive:
            known, code = self.known[worker], self.conductor.processes[worker].poll()
            if code is None:
                continue
            if known.notice_at is None:
                known.notice_at = now + self._delay()
            if now >= known.notice_at:
                known.finished = self._last_word(worker) if code == 0 else None
                if known.finished is None:
                    self.lost.add(worker)
                self.tell(f"{worker} ended with {code}, {known.finished or 'lost'}")

    def _delay(self) -> float:
        """Return how long a machine's end stays unnoticed: a blink, or longer than a repair."""
        return self.random.choice((self.random.uniform(0, 0.05), self.random.uniform(0.2, 1.2)))

    def _last_word(self, worker: str) -> FinishReason | None:
        """Return how training ended by a worker's own diary, as its supervisor would tell."""
        lines = (self.conductor.directory / f"{worker}.jsonl").read_text().splitlines()
        last = json.loads(lines[-1]) if lines else {}
        ended: FinishReason | None = last.get("ended")
        return ended

    def _execute(self, now: float) -> None:
        for worker, when in tuple(self.condemned.items()):
            if now >= when:
                self.conductor.processes[worker].kill()
                del self.condemned[worker]

    # What is done about it, in the order of urgency.

    def _condemn_silent(self, now: float) -> bool:
        """A member says nothing while others speak: it counts as lost, and its machine will go."""
        needed = [member.worker for member in self.members]
        handover = None if self.directive is None else self.directive.handover
        if handover is not None and not self.is_applied:
            needed.append(handover.worker)
        alive = [worker for worker in dict.fromkeys(needed) if worker in self.alive]
        silent = [worker for worker in alive if self._is_silent(worker, now)]
        if not silent or len(silent) == len(alive):
            return False
        self.silenced += len(silent)
        self.tell(f"silent: {silent}")
        self._terminate(silent, now, self.random.uniform(0, 1.5))
        return True

    def _is_silent(self, worker: str, now: float) -> bool:
        heard = self.conductor.heard_at.get(worker, UNKNOWN)
        return now - max(heard, self.hears_since) > SILENCE

    def _terminate(self, workers: Sequence[str], now: float, after: float = 0.0) -> None:
        self.lost.update(workers)
        self.condemned.update(dict.fromkeys(workers, now + after))

    def _leave_lost_behind(self, now: float) -> bool:
        survivors = [m for m in self.members if m.worker in self.alive]
        if not survivors or all(m.worker not in self.lost for m in self.members):
            return False
        self._publish(now, survivors, repairs=True, why="the survivors go on")
        return True

    def _form_anew(self, now: float) -> bool:
        """A member waits for a new generation, for long enough that it is no accident."""
        survivors = [m for m in self.members if m.worker in self.alive]
        waits = any(self.known[m.worker].broken is not None for m in survivors)
        if not waits or now - self.published[-1][0] < BREATH:
            return False
        self._publish(now, survivors, repairs=True, why="formed anew")
        return True

    def _back_off(self, now: float) -> bool:
        """Newcomers could not be reached, or did not come: go on with those there were."""
        directive = self.directive
        refused = [self.known[worker].refused for worker in self.alive]
        if directive is None or directive.generation not in refused:
            return False
        newcomers = [m.worker for m in self.members if self._is_newcomer(m.worker)]
        if newcomers:
            self._terminate(newcomers, now)
        self._publish(now, self._trained_last(), repairs=True, why="without the newcomers")
        return True

    def _is_newcomer(self, worker: str) -> bool:
        return worker in self.alive and self.known[worker].generation == UNKNOWN

    def _trained_last(self) -> list[Member]:
        """Return the living members of the newest directive that a worker has confirmed."""
        for _, directive in reversed(self.published):
            members = [m for m in directive.members if m.worker in self.alive]
            trained = [m for m in members if not self._is_newcomer(m.worker)]
            if trained:
                return trained
        return []

    def _grow(self, now: float) -> bool:
        missing = self.target.workers - len(self.available)
        for _ in range(missing):
            worker = f"w{len(self.known)}"
            self.known[worker] = Known()
            self.tell(f"launch {worker}")
            self.conductor.start(worker)
        return missing > 0

    def _resize(self, now: float) -> bool:
        if not self.is_applied:
            return True
        ready = {w: self.conductor.hellos[w] for w in self.available if self._is_ready(w)}
        if len(ready) < self.target.workers:
            return True
        order = [m.worker for m in self.members if m.worker in ready]
        order += [worker for worker in ready if worker not in order]
        members = [Member(w, ready[w].address) for w in order[: self.target.workers]]
        is_same = self.directive is not None and self.target.has_batch_and_stack_of(self.directive)
        if is_same and self.members == tuple(members):
            return False
        aside = [worker for worker in ready if worker not in order[: self.target.workers]]
        standby = tuple(aside) if self.target.keeps else ()
        self._publish(now, members, repairs=False, why="as planned", standby=standby)
        return True

    def _is_ready(self, worker: str) -> bool:
        """Whether a worker said hello, again if it was told to stand by and will be."""
        is_followed = any(member.worker in self.alive for member in self.members)
        told = self.directive.standby if self.directive is not None and is_followed else ()
        is_about_to = worker in told and not self._is_newcomer(worker)
        return worker in self.conductor.hellos and not is_about_to

    def _trim(self, now: float) -> bool:
        members = {member.worker for member in self.members}
        kept = set(self.available) if self.target.keeps else set()
        spare = [worker for worker in self.alive if worker not in members | kept]
        if not spare or now - self.published[-1][0] < FAREWELL:
            return False
        self._terminate(spare, now)
        return True

    def _publish(
        self,
        now: float,
        members: Sequence[Member],
        *,
        repairs: bool,
        why: str,
        standby: tuple[str, ...] = (),
    ) -> None:
        """Compose the Directive that comes after the newest one."""
        if not members:
            return
        before, most = self.directive, self.script.most_local_batch
        batch, stack = self.target.global_batch, self.target.stack
        if repairs and before is not None:
            batch, stack = before.config.global_batch, before.config.stack
        batch = batch if most is None else min(batch, most * len(members))
        trained = self._trained_last()
        if repairs and any(not self._is_newcomer(member.worker) for member in members):
            trained = []  # the most advanced of the members hands over
        directive = Directive(
            generation=1 if before is None else before.generation + 1,
            config=ClusterConfig(len(members), batch, stack=stack),
            members=tuple(members),
            purpose="probe",
            progress_per_iteration=batch / SAMPLES,
            learning_rate=LearningRateScaling(),
            stop=self.conductor.stop,
            split_every=self.script.split_every,
            report_after=0,
            why=why,
            repairs=repairs,
            fence=0 if before is None else before.fence,
            handover=trained[0] if trained else None,
            most_local_batch=most,
            standby=standby,
            strategy=self.script.strategy,
            servers=self._servers(),
            lbfgs=SETTINGS,
        )
        self.conductor.directive = directive
        self.published.append((now, directive))
        names = [f"{member.worker} at {member.address}" for member in members]
        aside = f", {', '.join(standby)} to stand by" if standby else ""
        self.tell(
            f"publish {directive.generation}: {names}, {batch} samples, {stack}, {why}{aside}"
        )

    def _servers(self) -> tuple[Member, ...]:
        names = [f"s{number}" for number in range(self.script.servers)]
        return tuple(Member(name, self.conductor.hellos[name].address) for name in names)

    def tell(self, what: str) -> None:
        """Write down what happened, for people who read a failed seed."""
        with open(self.conductor.directory / "story.txt", "a") as story:
            story.write(f"{time.monotonic() - self.began:7.3f} {what}\n")
