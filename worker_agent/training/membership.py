"""`Membership`: which generation a worker is in, and how it moves to the next one.

There are three ways. The leader announces a planned *change* and all members agree on it at one
iteration boundary. Workers that want to leave tell the others, which *drop* them at a boundary
and go on. When a collective fails, the survivors *recover*: by themselves if every missing member
is proven dead, otherwise as the controller says.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NoReturn

from scavenger.protocol import Directive, Member, Progress
from worker_agent.errors import ChangeAborted, GenerationBroken, LayoutChanged
from worker_agent.frameworks import JoinRole, TrainingStrategy
from worker_agent.state.progress import TrainingProgress
from worker_agent.telemetry.reporter import WAITING_REPORT_INTERVAL, Reporter

log = logging.getLogger(__name__)

MEMBERSHIP_POLL = 0.01
CONTROLLER_GRACE = 0.2  # for the controller to send a repair before the survivors agree on one


class Membership:
    """The generations of one worker.

    Attributes:
        directive: The worker's generation; None before the first.
        rank: Its rank there.
        announced_generation: Newest generation that it has announced, as leader.
        is_released: Whether it is no longer a member.

    Args:
        worker: This worker's id.
        strategy: How the workers train together.
        reporter: Connection to the controller.
        is_leaving: Called while waiting: whether this worker must end.
        save: Called before this worker starts again: whether its state is kept.
        layout: How the processes of this worker share the model, which another layout starts
            again; empty where nothing would start them.
    """

    def __init__(
        self,
        worker: str,
        strategy: TrainingStrategy,
        reporter: Reporter,
        is_leaving: Callable[[], bool],
        save: Callable[[], bool] = lambda: True,
        layout: str = "",
    ) -> None:
        self.worker, self.strategy, self.reporter = worker, strategy, reporter
        self.save, self.layout = save, layout
        self.rendezvous = strategy.rendezvous
        self.is_leaving = is_leaving
        self.directive: Directive | None = None
        self.rank = 0
        self.previous_directive: Directive | None = None
        self.announced_generation = self.inviting_generation = 0
        self.aborted_generation = 0
        self.has_state = False
        self.is_broken = False
        self.is_released = False

    @property
    def current_directive(self) -> Directive:
        """The worker's generation; valid after the first was entered."""
        if self.directive is None:
            raise RuntimeError("no generation was entered yet")
        return self.directive

    def begin(self, progress: TrainingProgress, message: Progress) -> TrainingProgress:
        """Wait for the first generation that lists this worker, and enter it."""
        self.reporter.set_interval(WAITING_REPORT_INTERVAL)
        # A generation that failed to form is not tried again; its successor, or a new host, is.
        tried: set[tuple[int, str]] = set()
        while not self.is_leaving():
            directive, host = self._find_invitation()
            if directive is None or (directive.generation, host.worker) in tried:
                time.sleep(MEMBERSHIP_POLL)
                continue
            tried.add((directive.generation, host.worker))
            if self._has_other_layout(directive):
                raise LayoutChanged(directive.layout)
            try:
                return self._join(directive, progress, directive.members, host, may_abort=False)
            except (ChangeAborted, GenerationBroken) as error:
                log.warning("%s", error)
                self.reporter.update_progress(message, broken=directive.generation)
        self.is_released = True
        return progress

    def is_newer_generation(self, generation: int) -> bool:
        """Whether the leader announces a generation to change to."""
        return generation > max(self.current_directive.generation, self.aborted_generation)

    def change(
        self, generation: int, progress: TrainingProgress, message: Progress
    ) -> TrainingProgress:
        """Leave this generation for the announced one, or stay if the change is cancelled."""
        leader = self.current_directive.members[0]
        try:
            directive = self.rendezvous.fetch_announced_directive(generation, leader)
            if self._has_other_layout(directive):
                self._start_again(directive, leader)
            # Old members must be there too: none may leave before the leader has decided.
            expected = dict.fromkeys((*self.current_directive.members, *directive.members))
            progress = self._join(directive, progress, tuple(expected), leader, may_abort=True)
        except ChangeAborted as error:
            self._stay(generation, error)
            return progress
        except GenerationBroken as error:
            log.warning("%s", error)
            return self.recover(progress, message)
        if self.is_released and self.worker in directive.standby:
            return self._stand_by(progress, message)
        return progress

    def _has_other_layout(self, directive: Directive) -> bool:
        return "" not in (directive.layout, self.layout) and directive.layout != self.layout

    def _start_again(self, directive: Directive, leader: Member) -> NoReturn:
        """Agree with the others to start again in another layout, once the state is kept.

        Raises:
            LayoutChanged: All do.
            ChangeAborted: The leader's state cannot be kept, or a member did not come.
        """
        if self.rank == 0 and not self.save():
            self.rendezvous.cancel(directive)
            raise ChangeAborted(
                f"generation {directive.generation} is cancelled: without a checkpoint, a change "
                "of layout would lose what was trained"
            )
        members = self.current_directive.members
        self.rendezvous.barrier(directive, members, leader, may_abort=True)
        self.rendezvous.part(directive, members, leader)
        if self.rank != 0:
            # The leader's machine may be lost before the others have read its checkpoint. Where
            # they share a directory theirs is the leader's, which is there by now.
            self.save()
        raise LayoutChanged(directive.layout)

    def _stand_by(self, progress: TrainingProgress, message: Progress) -> TrainingProgress:
        """Wait as a newcomer does, since this worker's state will be outdated by then."""
        log.info("%s stands by", self.worker)
        self.strategy.leave()
        self.rendezvous.restart_store()
        self.directive, self.previous_directive, self.rank = None, None, 0
        self.announced_generation = self.inviting_generation = self.aborted_generation = 0
        self.has_state = self.is_released = False
        self.reporter.send_hello(self.rendezvous.address, replace(message, generation=0))
        return self.begin(progress, message)

    def drop_leaving_members(
        self, leaving: Collection[int], progress: TrainingProgress, message: Progress
    ) -> TrainingProgress:
        """Continue without the members of these ranks, or be released as one of them."""
        if self.rank in leaving:
            self.is_released = True
            return progress
        directive = self.current_directive
        revised = directive.without({directive.members[rank].worker for rank in leaving})
        try:
            return self._join(
                revised, progress, revised.members, revised.members[0], may_abort=False
            )
        except GenerationBroken as error:
            log.warning("%s", error)
            return self.recover(progress, message)

    def recover(self, progress: TrainingProgress, message: Progress) -> TrainingProgress:
        """Continue with the surviving members after a failed collective, once they are known."""
        self.is_broken = True
        self.reporter.update_progress(message, broken=self.current_directive.generation)
        # The controller may know already who is lost; asking first avoids two repairs at once.
        self.reporter.set_interval(WAITING_REPORT_INTERVAL)
        self.reporter.wait_for_reply(CONTROLLER_GRACE)
        while not self.is_leaving():
            directive = self._repair()
            if directive is None:
                time.sleep(MEMBERSHIP_POLL)
                continue
            if self._has_other_layout(directive):
                self.save()  # any of them may come to lead the others
                raise LayoutChanged(directive.layout)
            try:
                members = directive.members
                host = directive.handover or members[0]
                return self._join(directive, progress, members, host, may_abort=False)
            except GenerationBroken as error:
                log.warning("%s", error)
                self.reporter.update_progress(message, broken=directive.generation)
        self.is_released = True
        return progress

    def announce(self, directive: Directive) -> None:
        """As leader, invite the newcomers, then announce the change; returns at once."""
        current = self.directive
        is_leader = current is not None and self.rank == 0 and not self.is_broken
        if current is None or not is_leader or directive.generation <= current.generation:
            return
        if directive.generation <= self.inviting_generation:
            return
        self.inviting_generation = directive.generation
        # An invited worker may never answer, so invite from a background thread.
        threading.Thread(
            target=self._invite_newcomers, args=(current, directive), daemon=True
        ).start()

    def _invite_newcomers(self, current: Directive, directive: Directive) -> None:
        if self._has_other_layout(directive):  # newcomers have it, and wait for the next generation
            self.rendezvous.announce(directive)
            self.announced_generation = directive.generation
            return
        known = {member.worker for member in current.members}
        newcomers = [member for member in directive.members if member.worker not in known]
        try:
            self.rendezvous.invite(directive, newcomers)
        except GenerationBroken as error:
            log.warning("generation %d is refused: %s", directive.generation, error)
            self.reporter.report_refused(directive.generation)
            return
        # A newer Directive may have replaced this one while its newcomers were on their way.
        if self.inviting_generation == directive.generation:
            self.announced_generation = directive.generation

    def is_fenced_out(self) -> bool:
        """Whether the controller considers this worker lost and has repaired the job without it.

        A worker that is alone has no collective that would fail; it would train on beside the
        others.
        """
        newest = self.reporter.newest
        if newest is None or self.directive is None:
            return False
        named = (*newest.members, *(() if newest.handover is None else (newest.handover,)))
        is_named = any(member.worker == self.worker for member in named)
        return newest.fence > self.directive.generation and not is_named

    def should_abort(self) -> bool:
        """Whether the current collective will never complete."""
        return self.directive is not None and self.is_superseded(self.directive)

    def is_superseded(self, directive: Directive) -> bool:
        """Whether a newer Directive replaces a generation that is being formed."""
        newest = self._newest()
        if newest is None or newest.generation <= directive.generation:
            return False
        return newest.fence > directive.generation or not self.has_state

    def _find_invitation(self) -> tuple[Directive | None, Member]:
        """Return the newest generation that lists this newcomer, and the member to meet at."""
        call, told = self.rendezvous.invitation(), self.reporter.newest
        no_member = Member("", "")
        if call is not None and (told is None or call.directive.generation >= told.generation):
            return call.directive, call.caller
        # Another address means the previous process of this worker, which has died.
        if told is None or Member(self.worker, self.rendezvous.address) not in told.members:
            return None, no_member
        return told, told.handover or told.members[0]

    def _newest(self) -> Directive | None:
        """Return the newest Directive from the controller or from a leader's invitation."""
        call = self.rendezvous.invitation()
        told = [self.reporter.newest, None if call is None else call.directive]
        known = [directive for directive in told if directive is not None]
        return max(known, key=lambda directive: directive.generation, default=None)

    def _repair(self) -> Directive | None:
        """Return the generation that repairs this one; None if there is none yet."""
        newest = self._newest()
        given_up = max(self.current_directive.generation, self.aborted_generation)
        is_newer = newest is not None and newest.generation > given_up
        if (
            newest is not None
            and is_newer
            and (newest.fence > self.current_directive.generation or self._is_donor_of(newest))
        ):
            return newest
        if self.current_directive.rank_of(self.worker) is None:
            self._return_to_previous()
            return None
        return self.rendezvous.repair(self.current_directive)

    def _is_donor_of(self, directive: Directive) -> bool:
        """Whether this worker is not a member of a generation but hands its state to it."""
        handover = directive.handover
        is_named = handover is not None and handover.worker == self.worker
        return is_named and directive.rank_of(self.worker) is None

    def _return_to_previous(self) -> None:
        """Return to the previous generation if handing over failed.

        As long as one member of the new generation lives, it may have the state and train on.
        """
        members = self.current_directive.members
        ids = {member.worker for member in members}
        if self.previous_directive is not None and self.rendezvous.proven_dead(members) >= ids:
            self.aborted_generation = self.current_directive.generation
            self.reporter.report_refused(self.aborted_generation)
            self.directive, self.previous_directive = self.previous_directive, None
            self.rank = self.current_directive.rank_of(self.worker) or 0

    def _join(
        self,
        directive: Directive,
        progress: TrainingProgress,
        expected: Sequence[Member],
        host: Member,
        *,
        may_abort: bool,
    ) -> TrainingProgress:
        """Agree with the other workers, then form the generation with them."""
        rank = directive.rank_of(self.worker)
        is_donor = host.worker == self.worker and rank is None
        if rank is None and not may_abort and not is_donor:
            self.is_released = True
            return progress
        self.rendezvous.barrier(directive, expected, host, may_abort=may_abort)
        if rank is None and not is_donor:
            self.is_released = True
            return progress
        self.previous_directive = self.directive if rank is None else None
        self.directive, self.rank = directive, rank or 0
        self.is_broken = True  # until it is formed
        donor = None if directive.rank_of(host.worker) is not None else host
        role, known = JoinRole(rank, donor), progress.corrected_for(directive)
        progress = self.strategy.join(directive, role, known, is_new=not self.has_state)
        self.is_released = rank is None
        self.is_broken, self.has_state = False, True
        self.announced_generation = directive.generation
        return progress.corrected_for(directive)

    def _stay(self, generation: int, error: ChangeAborted) -> None:
        log.warning("%s", error)
        self.aborted_generation = generation
        self.announced_generation = self.current_directive.generation
        if self.rank == 0:
            self.reporter.report_refused(generation)
