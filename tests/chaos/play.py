"""Play: one seed from its first worker to the last one's end."""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

from scavenger.protocol import Directive, StopAtProgress
from tests.chaos import judge, trainee
from tests.chaos.controller import Controller
from tests.chaos.door import Door
from tests.chaos.judge import Diaries, Iteration, Turn
from tests.chaos.networks import SAMPLES
from tests.chaos.script import EPOCHS, OUTAGES, TRAPS, Fault, Kind, Script, Step
from tests.chaos.shared_workers import launch_shared
from tests.chaos.zygote import Zygote
from tests.conductor import Conductor

TICK = 0.005
PATIENCE = {"pytorch": 60.0, "tensorflow": 240.0}  # seconds a seed may take
IMPATIENCE = 1.5  # seconds after which faults strike although their Directive is not out
DUMPING = 0.5  # seconds a stuck worker has to write down where it is stuck
ENDING = 6.0  # seconds the other workers have to end once one has


@dataclass
class Outcome:
    """What a seed showed.

    Attributes:
        wrong: What is wrong, in sentences; empty when all is well.
        fired: Faults that struck, by kind.
        recoveries: Seconds from the kill of a worker to the survivors' next iteration.
        helped: The same where the controller's Directive was needed.
        pause: Longest time without an applied iteration.
    """

    seed: int
    wrong: list[str] = field(default_factory=list)
    fired: Counter[Kind] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    helped: list[float] = field(default_factory=list)
    iterations: int = 0
    resizes: int = 0
    repairs: int = 0
    parted: int = 0
    ordered: int = 0
    aborts: int = 0
    refusals: int = 0
    silenced: int = 0
    restarts: int = 0
    returned: int = 0
    pause: float = 0.0
    duration: float = 0.0


@dataclass(frozen=True)
class Kill:
    """A worker that was killed while it trained with others."""

    worker: str
    at: float


class Play:
    """Carries a script out: target after target, fault after fault."""

    def __init__(self, script: Script, directory: Path, zygote: Zygote) -> None:
        self.script, self.random = script, Random(f"play {script.seed}")
        self.patience = PATIENCE[script.framework]
        self.door = Door()
        self.conductor = Conductor(
            directory,
            [],
            stop=StopAtProgress(EPOCHS),
            dataset_size=SAMPLES,
            purpose="probe",
            environment={
                "PACE": str(script.pace),
                "DROPOUT": str(script.dropout),
                "FRAMEWORK": script.framework,
            },
            launch=(
                zygote.launch
                if script.layout.is_plain
                else launch_shared(zygote.launch, script.layout, self.random)
            ),
            door=self.door,
        )
        self.controller = Controller(self.conductor, script, self.random)
        self.fired: Counter[Kind] = Counter()
        self.kills: list[Kill] = []
        self.asleep: dict[str, float] = {}
        self.traps: dict[Path, tuple[str, Fault]] = {}
        self.open_at = 0.0

    def run(self) -> bool:
        """Play all steps and wait for the end of training; False when it does not come."""
        self.end = time.monotonic() + self.patience
        with self.conductor:
            for step in self.script.steps:
                self._play(step)
            self._until(lambda: self.controller.is_done, self.patience)
            ending = time.monotonic() + ENDING
            self._until(lambda: not self._running(), ending - time.monotonic())
            if not self.controller.is_done:
                self._dump()
            return self.controller.is_done

    def _dump(self) -> None:
        """Let those that are stuck write down where."""
        for worker in self._running():
            self.conductor.processes[worker].send_signal(trainee.DUMP)
        time.sleep(DUMPING)

    def _play(self, step: Step) -> None:
        """Set the target, and let the faults strike when their moments come."""
        controller, began = self.controller, time.monotonic()
        target = controller.target
        target.workers, target.global_batch = step.workers, step.global_batch
        target.stack, target.keeps = step.stack, step.keeps
        target.dismissed |= self._dismissed(step)
        wanted = f"{step.workers}, {step.global_batch}, {step.stack}"
        controller.tell(f"want {wanted}, replaced: {step.swap}")
        before = len(controller.published)
        waiting = list(step.faults)
        out: float | None = None

        def is_over() -> bool:
            nonlocal out
            now = time.monotonic()
            if out is None and (len(controller.published) > before or now - began > IMPATIENCE):
                out = now
            for fault in tuple(waiting):
                start = began if fault.moment == "begin" else out
                if start is not None and now >= start + fault.after:
                    waiting.remove(fault)
                    self._strike(fault, now)
            return not waiting and out is not None and now > out + step.rest

        self._until(is_over, self.patience)

    def _dismissed(self, step: Step) -> set[str]:
        members = [member.worker for member in self.controller.members]
        if step.swap == "none" or not members:
            return set()
        if step.swap == "all":
            return set(members)
        return {members[0]} if step.swap == "leader" else {members[-1]}

    def _until(self, is_over: object, seconds: float) -> None:
        """Let the controller tick and sleepers wake until something is over."""
        assert callable(is_over)
        end = min(self.end, time.monotonic() + seconds)
        while not is_over() and not self._failed() and (now := time.monotonic()) < end:
            if self.door.outage is not None and now >= self.open_at:
                self.door.shut(None)
                self.controller.hears_since = now
            if self.door.outage is not Kind.REFUSE:
                self.controller.tick(now)
            self._look_at_traps(now)
            for worker, wake_at in tuple(self.asleep.items()):
                if now >= wake_at:
                    del self.asleep[worker]
                    self.conductor.processes[worker].send_signal(signal.SIGCONT)
            time.sleep(TICK)

    def _running(self) -> list[str]:
        return [w for w, p in self.conductor.processes.items() if p.poll() is None]

    def _failed(self) -> bool:
        """Whether a script was harmed, which ends the seed."""
        return any((process.poll() or 0) > 0 for process in self.conductor.processes.values())

    # Faults.

    def _strike(self, fault: Fault, now: float) -> None:
        """Let a fault happen, if there is a worker that it can happen to."""
        if self.controller.is_done:
            return
        self.controller.tell(f"strike: {fault}")
        if fault.kind in OUTAGES:
            self.door.shut(fault.kind)
            self.open_at = now + fault.length
            self.fired[fault.kind] += 1
            return
        victims = self._victims(fault)
        if fault.kind in TRAPS:
            for worker in victims:
                self._lay_trap(worker, fault)
            return
        for worker in victims:
            self._hit(worker, fault, now)
        self.fired[fault.kind] += bool(victims)

    def _victims(self, fault: Fault) -> list[str]:
        members = [m.worker for m in self.controller.members if m.worker in self._running()]
        newcomers = [w for w in self._running() if self.controller.known[w].generation == 0]
        running = list(dict.fromkeys([*members, *newcomers]))
        pools = {Kind.KILL_LEADER: members[:1], Kind.KILL_NEWCOMER: newcomers}
        pools |= dict.fromkeys(TRAPS, members[1:])
        pool = pools.get(fault.kind, running)
        if not pool:
            return []
        place = int(fault.pick * len(pool))
        wanted = 2 if fault.kind is Kind.KILL_TWO else 1
        if len(pool) < wanted:
            return []
        return [pool[place], pool[(place + 1) % len(pool)]][:wanted]

    def _lay_trap(self, worker: str, fault: Fault) -> None:
        end = signal.SIGKILL if fault.kind is Kind.KILL_AT_MEETING else signal.SIGSTOP
        path = self.conductor.directory / trainee.trap(worker, end)
        path.touch()
        self.traps[path] = worker, fault

    def _look_at_traps(self, now: float) -> None:
        """See who has run into one: it is dead now, or has to be woken up after a while."""
        for path in [path for path in self.traps if not path.exists()]:
            worker, fault = self.traps.pop(path)
            self.controller.tell(f"trapped {worker}: {fault.kind.value}")
            self.fired[fault.kind] += 1
            if fault.kind is Kind.STOP_AT_MEETING:
                self.asleep[worker] = now + fault.length
            else:
                self.kills.append(Kill(worker, now))

    def _hit(self, worker: str, fault: Fault, now: float) -> None:
        process = self.conductor.processes[worker]
        self.controller.tell(f"hit {worker}")
        if fault.kind is Kind.STOP:
            self.asleep[worker] = now + fault.length
            process.send_signal(signal.SIGSTOP)
        elif fault.kind is Kind.DRAIN:
            process.send_signal(signal.SIGTERM)
        elif fault.kind is Kind.DROP:
            process.send_signal(trainee.DROP)
        else:
            self.kills.append(Kill(worker, time.monotonic()))
            process.send_signal(signal.SIGKILL)


def play(script: Script, directory: Path, zygote: Zygote) -> Outcome:
    """Play one script and judge it."""
    directory.mkdir(parents=True)
    began = time.monotonic()
    one = Play(script, directory, zygote)
    is_done = one.run()
    outcome = Outcome(script.seed, fired=one.fired, duration=time.monotonic() - began)
    diaries = judge.read(directory, script.layout)
    outcome.wrong = [*failures(one), *refusals(one), *judge.verdict(script, diaries)]
    if not is_done:
        outcome.wrong.insert(0, f"not done after {one.patience:.0f} s")
    describe(outcome, one, diaries)
    return outcome


def refusals(one: Play) -> list[str]:
    """Name stacks that a worker refused: all of them compute what eager does."""
    told = (check for each in one.conductor.reports for check in each.progress.stack_checks)
    return sorted({f"{each.stack} was refused: {each.refusal}" for each in told if each.refusal})


def failures(one: Play) -> list[str]:
    """Name workers whose script was harmed."""
    codes = {worker: process.poll() for worker, process in one.conductor.processes.items()}
    known = (None, 0, -signal.SIGKILL, -signal.SIGTERM)
    wrong = [f"{worker} ended with {code}" for worker, code in codes.items() if code not in known]
    for path in one.conductor.directory.glob("*.log"):
        # A process that outlives another one of its worker says so as it ends.
        if not one.script.layout.is_plain and codes.get(path.name.split(".")[0]):
            continue
        if "Traceback" in path.read_text(errors="replace"):
            wrong.append(f"{path.stem} shows a traceback")
    return wrong


def describe(outcome: Outcome, one: Play, diaries: Diaries) -> None:
    """Count what happened besides."""
    order = judge.applied(diaries.attempts)
    outcome.iterations = len(order)
    outcome.pause = max((b.at - a.at for a, b in pairwise(order)), default=0.0)
    ways = {turn: order_of(order, turn)[0] for turn in sorted({it.turn for it in order})}
    generations = {generation for generation, _ in ways}
    outcome.resizes = len(generations) - 1
    killed = {kill.worker for kill in one.kills} | one.controller.lost
    for before, after in pairwise(ways.values()):
        if after.turn[1] == 0:
            continue
        gone = set(before.attempts[0].members) - set(after.attempts[0].members)
        outcome.repairs += bool(gone & killed)
        outcome.parted += not gone & killed
    directives = [directive for _, directive in one.controller.published]
    outcome.ordered = sum(d.repairs and d.generation in generations for d in directives)
    outcome.silenced = one.controller.silenced
    log = "".join(
        path.read_text(errors="replace") for path in one.conductor.directory.glob("*.log")
    )
    outcome.aborts = len({line for line in log.splitlines() if "is cancelled" in line})
    outcome.refusals = len({line for line in log.splitlines() if "is refused" in line})
    outcome.returned = comebacks(directives)
    attempted = [attempt for attempt in diaries.attempts if attempt.iteration == 0]
    outcome.restarts = len({attempt.turn for attempt in attempted}) - 1
    measure_recoveries(outcome, one, order)


def comebacks(directives: list[Directive]) -> int:
    """Count the times a worker that stood by was named again."""
    aside: set[str] = set()
    count = 0
    for directive in directives:
        named = {member.worker for member in directive.members}
        count += len(aside & named)
        aside = (aside | set(directive.standby)) - named
    return count


def order_of(order: list[Iteration], turn: Turn) -> list[Iteration]:
    """Return a turn's applied iterations."""
    return [it for it in order if it.turn == turn]


def measure_recoveries(outcome: Outcome, one: Play, order: list[Iteration]) -> None:
    """Note how long survivors took from a kill to their next iteration."""
    for kill in one.kills:
        before = [it for it in order if it.at <= kill.at]
        if not before or kill.worker not in before[-1].attempts[0].members:
            continue
        then = before[-1]
        now = next((it for it in order if it.at > kill.at and it.turn > then.turn), None)
        if now is None:
            continue
        survivors = set(then.attempts[0].members) & set(now.attempts[0].members)
        if not survivors or kill.worker in now.attempts[0].members:
            continue
        is_alone = now.turn[1] > 0
        (outcome.recoveries if is_alone else outcome.helped).append(now.at - kill.at)
