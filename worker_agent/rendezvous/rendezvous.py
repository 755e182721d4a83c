"""`StoreRendezvous`: workers agree on generations through key-value stores that they serve.

A planned change has two phases. First the leader invites the newcomers and waits, beside
training, until all have arrived. Then it announces the change; at that iteration boundary every
old and new member comes to the leader's store, and the leader decides: commit, or abort when one
is missing. No member leaves the old generation before it has read the verdict.

A generation that broke is repaired by its survivors when every missing member is proven dead:
its computer refuses connections to its store. A member that is only silent may wake up and train
on, so in that case the controller has to decide who continues.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from pydantic import TypeAdapter

from scavenger.protocol import Directive, Member
from worker_agent.errors import ChangeAborted, GenerationBroken
from worker_agent.rendezvous.store import KeyValueClient, KeyValueServer

LIVENESS_TIMEOUT = 0.5  # seconds a computer has to answer or to refuse
RENDEZVOUS_POLL = 0.05
ARRIVAL_TIMEOUT = 10.0  # seconds a called newcomer has to come
MAX_LEADER_PAUSE = 60.0  # seconds a leader may sleep between announcing a change and making it
BARRIER_TIMEOUT = 20.0  # seconds the host waits for those it expects

COMMIT, ABORT, VOID = "commit", "abort", "void"


@dataclass(frozen=True, slots=True)
class Invitation:
    """A leader summons a newcomer.

    Attributes:
        directive: The generation it is to be in.
        caller: The leader, where all meet.
    """

    directive: Directive
    caller: Member


class Rendezvous(Protocol):
    """How workers agree who forms the next generation; `StoreRendezvous` implements it."""

    @property
    def address(self) -> str:
        """``host:port`` where others find this worker."""

    def called(self) -> Invitation | None:
        """Return the newest call a leader made to this worker."""

    def call(self, directive: Directive, newcomers: Sequence[Member]) -> None:
        """As leader, summon newcomers and wait until all have come; raises Broken."""

    def told(self, generation: int, leader: Member) -> Directive:
        """Return the Directive this leader announced for a generation; raises Broken."""

    def agree(
        self, directive: Directive, expected: Sequence[Member], host: Member, *, may_abort: bool
    ) -> None:
        """Wait until all that are expected have come to the host; raises Broken or Aborted."""

    def repair(self, directive: Directive) -> Directive | None:
        """Agree with the other survivors of a broken generation; None when not yet."""

    def dead(self, members: Iterable[Member]) -> set[str]:
        """Return those of the others that are proven dead."""

    def renew(self) -> None:
        """Go on at another address, where nothing of the meetings so far is known."""

    def close(self) -> None:
        """Stop serving others."""


_DIRECTIVE: TypeAdapter[Directive] = TypeAdapter(Directive)
_INVITATION: TypeAdapter[Invitation] = TypeAdapter(Invitation)


class KeyValueStore(Protocol):
    """A board, one's own or another worker's."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def wait(self, keys: Sequence[str], timeout: float) -> bool:
        """Wait until all keys are there; whether they are."""

    def read(self, key: str) -> str | None:
        """Return a value; None when it is not there."""


class StoreRendezvous:
    """Where one worker meets the others.

    Args:
        worker: This worker's id.
        host: Address at which the others reach it.
        is_superseded: Asked while waiting for others: whether a newer generation is known.
    """

    def __init__(self, worker: str, host: str, is_superseded: Callable[[Directive], bool]) -> None:
        self.worker, self.host, self.is_superseded = worker, host, is_superseded
        self.own = KeyValueServer(host)
        self.address = self.own.address
        self.reached: dict[str, KeyValueClient] = {}

    def called(self) -> Invitation | None:
        """Return the newest call a leader made to this worker."""
        content = self.own.read("called")
        return None if content is None else _INVITATION.validate_json(content)

    def call(self, directive: Directive, newcomers: Sequence[Member]) -> None:
        """As leader, summon newcomers and wait until all have come.

        Runs beside training, over connections of its own.

        Raises:
            Broken: One cannot be reached, or does not come.
        """
        caller = Member(self.worker, self.address)
        content = _INVITATION.dump_json(Invitation(directive, caller)).decode()
        try:
            for newcomer in newcomers:
                with closing(KeyValueClient(newcomer.address)) as client:
                    client.set("called", content)
        except OSError as error:
            raise GenerationBroken(f"a newcomer does not answer: {error}") from error
        self._await_arrivals(directive, newcomers)
        content = _DIRECTIVE.dump_json(directive).decode()
        self.own.set(f"directive/{directive.generation}", content)

    def told(self, generation: int, leader: Member) -> Directive:
        """Return the Directive this leader announced for a generation.

        Raises:
            Broken: The leader is gone.
        """
        deadline = time.monotonic() + MAX_LEADER_PAUSE
        while True:
            try:
                content = self.reach(leader).read(f"directive/{generation}")
                break
            except TimeoutError as error:  # it may only sleep
                if time.monotonic() > deadline:
                    raise self._lost(leader, error) from error
                self.reached.pop(leader.address, None)
            except OSError as error:
                raise self._lost(leader, error) from error
        if content is None:
            raise GenerationBroken(
                f"{leader.worker} announced generation {generation} and does not know it"
            )
        return _DIRECTIVE.validate_json(content)

    def agree(
        self, directive: Directive, expected: Sequence[Member], host: Member, *, may_abort: bool
    ) -> None:
        """Wait until all that are expected have come to the host.

        Raises:
            Aborted: One did not come; the generation before goes on.
            Broken: The host is gone, or this generation is superseded.
        """
        turn = generation_label(directive)
        if host.worker == self.worker:
            self.own.set(f"here/{turn}/{self.worker}", "")
            verdict = self._gather(directive, expected, may_abort=may_abort)
            self.own.set(f"verdict/{turn}", verdict)
        else:
            verdict = self._await_verdict(directive, host)
        if verdict == ABORT:
            raise ChangeAborted(f"generation {turn} is called off: not everybody came")
        if verdict == VOID:
            raise GenerationBroken(f"generation {turn} cannot be formed: not everybody came")

    def repair(self, directive: Directive) -> Directive | None:
        """Agree with the other survivors of a broken generation on its next revision.

        Does not wait: call it again until it answers, or until the controller has.

        Returns:
            The revision; None while a survivor has not noticed yet, or a silent one may live.
        """
        dead = self.dead(directive.members)
        alive = [member for member in directive.members if member.worker not in dead]
        turn = generation_label(directive)
        try:
            board = self.reach(alive[0])
            board.set(f"broken/{turn}/{self.worker}", "")
            if alive[0].worker == self.worker:
                return self._revise(board, directive, alive, dead)
            content = board.read(f"revision/{turn}")
        except OSError:
            self.reached.pop(alive[0].address, None)  # it died since: the next one hosts
            return None
        return None if content is None else _DIRECTIVE.validate_json(content)

    def dead(self, members: Iterable[Member]) -> set[str]:
        """Return those of the others that are proven dead."""
        others = [member for member in members if member.worker != self.worker]
        return {member.worker for member in others if is_proven_dead(member.address)}

    def reach(self, member: Member) -> KeyValueStore:
        """Return a member's board; raises OSError when it is gone."""
        if member.worker == self.worker:
            return self.own
        if member.address not in self.reached:
            self.reached[member.address] = KeyValueClient(member.address)
        return self.reached[member.address]

    def renew(self) -> None:
        """Go on at another address, where nothing of the meetings so far is known."""
        self.own.close()
        self.own = KeyValueServer(self.host)
        self.address = self.own.address

    def close(self) -> None:
        """Stop serving others: from now on they know that this worker is gone."""
        self.own.close()

    def _lost(self, member: Member, error: Exception) -> GenerationBroken:
        self.reached.pop(member.address, None)
        return GenerationBroken(f"{member.worker} is gone: {error}")

    def _await_arrivals(self, directive: Directive, newcomers: Sequence[Member]) -> None:
        deadline = time.monotonic() + ARRIVAL_TIMEOUT
        while missing := self._missing(directive, newcomers):
            if time.monotonic() > deadline or any_proven_dead(missing):
                raise GenerationBroken(f"{missing[0].worker} was called and did not come")

    def _missing(self, directive: Directive, members: Sequence[Member]) -> list[Member]:
        """Wait a moment for members to come here; returns those that have not."""
        keys = {f"here/{generation_label(directive)}/{member.worker}": member for member in members}
        if self.own.wait(list(keys), RENDEZVOUS_POLL):
            return []
        return [member for key, member in keys.items() if self.own.read(key) is None]

    def _gather(self, directive: Directive, expected: Sequence[Member], *, may_abort: bool) -> str:
        """Wait for everybody and decide."""
        deadline = time.monotonic() + BARRIER_TIMEOUT
        while missing := self._missing(directive, expected):
            is_late = time.monotonic() > deadline
            is_void = not may_abort and self.is_superseded(directive)
            if is_late or is_void or any_proven_dead(missing):
                return ABORT if may_abort else VOID
        return COMMIT

    def _await_verdict(self, directive: Directive, host: Member) -> str:
        """Come to the host and wait for what it decides, also while it only sleeps."""
        turn = generation_label(directive)
        while True:
            try:
                board = self.reach(host)
                board.set(f"here/{turn}/{self.worker}", "")
                if board.wait([f"verdict/{turn}"], RENDEZVOUS_POLL):
                    return board.read(f"verdict/{turn}") or VOID
            except TimeoutError:
                self.reached.pop(host.address, None)
            except OSError as error:
                raise self._lost(host, error) from error
            if self.is_superseded(directive) or self._is_called_elsewhere(directive, host):
                return VOID

    def _is_called_elsewhere(self, directive: Directive, host: Member) -> bool:
        call = self.called()
        is_meant = call is not None and call.directive.generation == directive.generation
        return call is not None and is_meant and call.caller != host

    def _revise(
        self,
        board: KeyValueStore,
        directive: Directive,
        alive: Sequence[Member],
        dead: Iterable[str],
    ) -> Directive | None:
        """As the first survivor, fix who goes on once all survivors have come."""
        turn = generation_label(directive)
        if not board.wait([f"broken/{turn}/{member.worker}" for member in alive], 0.0):
            return None
        revised = directive.without(set(dead))
        board.set(f"revision/{turn}", _DIRECTIVE.dump_json(revised).decode())
        return revised


def generation_label(directive: Directive) -> str:
    """Name one attempt of a generation."""
    return f"{directive.generation}.{directive.revision}"


def any_proven_dead(members: Iterable[Member]) -> bool:
    """Whether one of them is proven dead."""
    return any(is_proven_dead(member.address) for member in members)


def is_proven_dead(address: str) -> bool:
    """Whether the process behind an address is proven dead: its computer refuses the connection.

    A stopped process still accepts, and a computer that is lost does not answer at all.
    """
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), LIVENESS_TIMEOUT).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
