"""Processes of workers whose job searches a layout: they enrol, profile, and start again.

They keep what real ones keep: a process that starts again has no state, and only the worker that
led before has the newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from scavenger.layout import Layout
from scavenger.measurement.layout_profile import LayoutProfile
from scavenger.protocol import (
    Directive,
    Hello,
    Member,
    ProfileReport,
    Progress,
    StepReport,
    WorkerSpec,
)
from service.api.enrolment import layout_after_failure, store_profile, with_layout
from service.api.telemetry import store_report, validate_rows
from service.db import workers
from service.db.jobs import StoredJob
from service.db.vms import Vm
from tests.fakecloud.emulator import MACHINE_TYPE

STARTS = timedelta(seconds=2)  # until a process is up; the leader's takes twice as long
TRAINS = WorkerSpec(command=("train",))


@dataclass(frozen=True, slots=True)
class Process:
    """The newest process of a worker.

    Attributes:
        layout: How it shares the model; None until it was told.
        address: Where it said hello; empty before.
        begins: When it, or the profile before it, is ready; None once it is up.
        has_state: Whether it has what was trained.
        stale: Generation of the process before, which its first report still tells; 0 for none.
    """

    layout: Layout | None = None
    address: str = ""
    begins: datetime | None = None
    has_state: bool = False
    stale: int = 0


class Processes:
    """The processes of all workers of one job.

    Attributes:
        rows: How many rows of each worker the controller has.
        refused: The layout in which commands fail, if any.
        mishaps: What no real worker would have got over.
    """

    def __init__(
        self, job: str, profile: LayoutProfile, rows: dict[str, int], refused: str
    ) -> None:
        self.job, self.profile, self.rows, self.refused = job, profile, rows, refused
        self.of: dict[str, Process] = {}
        self.leader = self.saved_by = ""
        self.starts = 0
        self.mishaps: list[str] = []

    def memory(self) -> object:
        """Return what they remember."""
        return self.of, self.leader, self.saved_by, self.starts, self.mishaps

    def forget(self, running: Collection[str]) -> None:
        """Forget processes whose machines are gone."""
        self.of = {worker: mine for worker, mine in self.of.items() if worker in running}

    def follow(
        self,
        connection: Connection,
        job: StoredJob,
        vm: Vm,
        host: str,
        directive: Directive | None,
        now: datetime,
    ) -> bool:
        """Let a worker do what its layout asks for; whether it takes part as any other then."""
        mine = self.of.get(vm.id, Process())
        if vm.exit_code is not None:
            return False
        if mine.layout is None:
            self.of[vm.id] = self._enrol(connection, job, vm, mine, now)
        elif mine.begins is not None:
            if now >= mine.begins and str(mine.layout) == self.refused:
                self._fail(connection, vm, mine, now)
            elif now >= mine.begins:
                self._say_hello(connection, vm, host, now)
        elif mine.stale:
            self._report_stale(connection, vm, mine.stale, now)
        elif directive is not None and self._has_other_layout(vm, mine, directive):
            self._start_again(connection, vm, directive, now)
        elif directive is not None and self.is_formed(directive):
            if vm.id == directive.members[0].worker:
                self._share_state(directive)
            return True
        else:
            return directive is not None and vm.id in directive.standby
        return False

    def move(self, worker: str, address: str) -> None:
        """Note that a worker stands by at an address, without its state."""
        self.of[worker] = replace(self.of[worker], address=address, has_state=False)

    def is_formed(self, directive: Directive) -> bool:
        """Whether all members can be met where the Directive says, in its layout."""
        there = [self.of.get(member.worker, Process()) for member in directive.members]
        return all(
            (process.address, str(process.layout)) == (member.address, directive.layout)
            for process, member in zip(there, directive.members, strict=True)
        )

    def _enrol(
        self, connection: Connection, job: StoredJob, vm: Vm, mine: Process, now: datetime
    ) -> Process:
        """Ask for the layout to start in, and profile the model first if so told."""
        told = with_layout(connection, MACHINE_TYPE, job, vm.id, TRAINS, now)
        if not told.profile:
            return replace(mine, layout=told.layout, begins=now)
        if mine.begins is None:
            return replace(mine, begins=now + STARTS)
        message = ProfileReport(vm.id, self.profile)
        reply = store_profile(connection, MACHINE_TYPE, job, message, now)
        assert not reply.refusal
        return replace(mine, layout=reply.layout, begins=now)

    def _say_hello(self, connection: Connection, vm: Vm, host: str, now: datetime) -> None:
        self.starts += 1
        address = f"{host}:{10_000 + self.starts}"  # each process has a port of its own
        hello = Hello(vm.id, address, vm.role)
        self.rows[vm.id] = workers.record_hello(connection, self.job, hello, now)
        self.of[vm.id] = replace(self.of[vm.id], address=address, begins=None)

    def _fail(self, connection: Connection, vm: Vm, mine: Process, now: datetime) -> None:
        """Let the command of a worker fail, and start it again in the layout that is left."""
        assert mine.layout is not None
        other = layout_after_failure(connection, vm.id, mine.layout, "no", now)
        if other is None:
            self.mishaps.append(f"{vm.id} failed in {mine.layout} and is told no other layout")
            return
        workers.record_restart(connection, vm.id, now)
        self.of[vm.id] = replace(mine, layout=other, begins=now + STARTS)

    def _report_stale(self, connection: Connection, vm: Vm, generation: int, now: datetime) -> None:
        """Report what the supervisor found in the spool of the process before."""
        report = StepReport(vm.id, Progress(generation, 0, 0, 1.0, {}), self.rows.get(vm.id, 0))
        store_report(connection, validate_rows(report, {}), now)
        self.of[vm.id] = replace(self.of[vm.id], stale=0)

    def _has_other_layout(self, vm: Vm, mine: Process, directive: Directive) -> bool:
        """Whether a worker is to start again: as one that trains, or that is to take part."""
        is_concerned = mine.has_state or Member(vm.id, mine.address) in directive.members
        return is_concerned and str(mine.layout) != directive.layout

    def _start_again(
        self, connection: Connection, vm: Vm, directive: Directive, now: datetime
    ) -> None:
        """End the process of a worker, the leader's after a checkpoint."""
        known = {worker.worker: worker for worker in workers.of_job(connection, self.job)}
        leads = vm.id == self.leader
        if leads:
            self.saved_by = vm.id
        workers.record_restart(connection, vm.id, now)
        layout, begins = Layout.parse(directive.layout), now + STARTS * (1 + leads)
        self.of[vm.id] = Process(layout, begins=begins, stale=known[vm.id].generation)

    def _share_state(self, directive: Directive) -> None:
        """Take the state of a member or of the one that hands over, or else read a checkpoint."""
        names = [member.worker for member in directive.members]
        given = [] if directive.handover is None else [directive.handover.worker]
        donors = [self.of[name] for name in (*names, *given) if name in self.of]
        if not any(process.has_state for process in donors) and self.saved_by not in ("", names[0]):
            self.mishaps.append(f"{names[0]} leads, and {self.saved_by} has the checkpoint")
        self.leader = names[0]
        self.of = {name: replace(own, has_state=name in names) for name, own in self.of.items()}
