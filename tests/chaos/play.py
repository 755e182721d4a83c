"""Play: one seed from its first worker to the last one's end."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter
from pathlib import Path
from random import Random

from scavenger.protocol import StopAtProgress
from tests.chaos import diaries, judge, trainee
from tests.chaos.controller import Controller
from tests.chaos.door import Door
from tests.chaos.networks import SAMPLES
from tests.chaos.outcome import Kill, Outcome, describe
from tests.chaos.script import EPOCHS, OUTAGES, TRAPS, Fault, Kind, Script, Step
from tests.chaos.server import COORDINATOR
from tests.chaos.shared_workers import launch_shared
from tests.chaos.zygote import Zygote
from tests.conductor import Conductor

TICK = 0.005
# Seconds without an iteration after which a seed is stuck. On a busy computer one with sixteen
# processes makes four iterations in a second, so how long it takes says nothing.
PATIENCE = {"pytorch": 60.0, "tensorflow": 240.0}
MOST_PATIENCE = 6  # times as long is too long for any seed
IMPATIENCE = 1.5  # seconds after which faults strike although their Directive is not out
DUMPING = 0.5  # seconds a stuck worker has to write down where it is stuck
ENDING = 6.0  # seconds the other workers have to end once one has
LAID = {
    Kind.KILL_AT_MEETING: signal.SIGKILL.name,
    Kind.STOP_AT_MEETING: signal.SIGSTOP.name,
    Kind.REPEAT: trainee.TWICE,
}


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
            environment=environment_of(script, directory),
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
        self.coordinators_to_kill = 0
        self.killed_coordinator = ""
        self.open_at = 0.0

    def run(self) -> bool:
        """Play all steps and wait for the end of training; False when it does not come."""
        self.end = time.monotonic() + MOST_PATIENCE * self.patience
        with self.conductor:
            self._start_servers()
            for step in self.script.steps:
                self._play(step)
            self._until(lambda: self.controller.is_done)
            ending = time.monotonic() + ENDING
            self._until(lambda: not self._running(), ending - time.monotonic())
            if not self.controller.is_done:
                self._dump()
            return self.controller.is_done

    def _start_servers(self) -> None:
        names = [f"s{number}" for number in range(self.script.servers)]
        worker, self.conductor.command = self.conductor.command, ["a server"]
        for name in names:
            self.conductor.start(name)
        self.conductor.command = worker
        self.conductor.wait(lambda: all(name in self.conductor.hellos for name in names))

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

        self._until(is_over)

    def _dismissed(self, step: Step) -> set[str]:
        members = [member.worker for member in self.controller.members]
        if step.swap == "none" or not members:
            return set()
        if step.swap == "all":
            return set(members)
        return {members[0]} if step.swap == "leader" else {members[-1]}

    def _until(self, is_over: object, seconds: float = math.inf) -> None:
        """Let the controller tick and sleepers wake until something is over."""
        assert callable(is_over)
        end = min(self.end, time.monotonic() + seconds)
        while not is_over() and not self._failed() and (now := time.monotonic()) < end:
            if now > self.controller.advanced_at + self.patience:
                return
            if self.door.outage is not None and now >= self.open_at:
                self.door.shut(None)
                self.controller.hears_since = now
            if self.door.outage is not Kind.REFUSE:
                self.controller.tick(now)
            self._look_at_traps(now)
            self._look_for_coordinators()
            for worker, wake_at in tuple(self.asleep.items()):
                if now >= wake_at:
                    del self.asleep[worker]
                    self.conductor.processes[worker].send_signal(signal.SIGCONT)
            time.sleep(TICK)

    def _running(self) -> list[str]:
        """Return the workers that live; servers do to the end."""
        processes = self.conductor.processes
        return [worker for worker in self.controller.known if processes[worker].poll() is None]

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
        if fault.kind is Kind.KILL_COORDINATOR:
            self.coordinators_to_kill += 1
            return
        victims = self._victims(fault)
        if fault.kind in (*TRAPS, Kind.REPEAT):
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
        path = self.conductor.directory / trainee.trap(worker, LAID[fault.kind])
        path.touch()
        self.traps[path] = worker, fault

    def _look_at_traps(self, now: float) -> None:
        """See who has run into one: some are dead now, some have to be woken up after a while."""
        for path in [path for path in self.traps if not path.exists()]:
            worker, fault = self.traps.pop(path)
            self.controller.tell(f"trapped {worker}: {fault.kind.value}")
            self.fired[fault.kind] += 1
            if fault.kind is Kind.STOP_AT_MEETING:
                self.asleep[worker] = now + fault.length
            elif fault.kind is Kind.KILL_AT_MEETING:
                self.kills.append(Kill(worker, now))

    def _look_for_coordinators(self) -> None:
        """Kill a coordinator if one is to die, as soon as one runs that was not killed yet."""
        path = self.conductor.directory / COORDINATOR
        if not self.coordinators_to_kill or not path.exists() or self.controller.is_done:
            return
        running = path.read_text()
        if running != self.killed_coordinator:
            os.kill(int(running), signal.SIGKILL)
            self.controller.tell(f"killed the coordinator {running}")
            self.killed_coordinator = running
            self.coordinators_to_kill -= 1
            self.fired[Kind.KILL_COORDINATOR] += 1

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
    plan = script.strategy if script.layout.is_plain else f"{script.strategy} {script.layout}"
    outcome = Outcome(script.seed, plan, fired=one.fired, duration=time.monotonic() - began)
    told = diaries.read(directory, script.layout)
    outcome.wrong = [*failures(one), *refusals(one), *judge.verdict(script, told)]
    if not is_done:
        outcome.wrong.insert(0, f"not done after {outcome.duration:.0f} s")
    describe(outcome, one.controller, one.kills, told)
    return outcome


def environment_of(script: Script, directory: Path) -> dict[str, str]:
    """Return what the processes of a job are told."""
    told = {
        "PACE": str(script.pace),
        "DROPOUT": str(script.dropout),
        "FRAMEWORK": script.framework,
        "SCAVENGER_STRATEGY": script.strategy,
    }
    if script.servers:
        told["SCAVENGER_JOB_SECRET"] = "between them"
    if script.checkpoint_every:
        told["SCAVENGER_CHECKPOINTS"] = str(directory / "checkpoints")
        told["SCAVENGER_CHECKPOINT_EVERY"] = str(script.checkpoint_every)
    return told


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
