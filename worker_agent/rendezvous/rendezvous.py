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
from contextlib import closing, suppress
from dataclasses import dataclass

from pydantic import TypeAdapter

from scavenger.protocol import Directive, Member
from worker_agent.errors import ChangeAborted, GenerationBroken
from worker_agent.rendezvous.store import KeyValueClient, KeyValueServer

LIVENESS_TIMEOUT = 0.5  # seconds a computer has to answer or to refuse
RENDEZVOUS_POLL = 0.05
ARRIVAL_TIMEOUT = 10.0  # seconds an invited newcomer has to come
MAX_LEADER_PAUSE = 60.0  # seconds a leader may sleep between announcing a change and making it
BARRIER_TIMEOUT = 20.0  # seconds the host waits for the members it expects
PARTING_TIMEOUT = 5.0  # seconds a host that ends waits for them to have read its decision

DEAD_PEER_CHECK_EVERY = 1.0  # seconds, while a collective waits

COMMIT, ABORT, VOID = "commit", "abort", "void"


@dataclass(frozen=True, slots=True)
class Invitation:
    """A leader's invitation of a newcomer.

    Attributes:
        directive: The generation that the newcomer is a member of.
        caller: The leader, at whose store all members meet.
    """

    directive: Directive
    caller: Member


_DIRECTIVE: TypeAdapter[Directive] = TypeAdapter(Directive)
_INVITATION: TypeAdapter[Invitation] = TypeAdapter(Invitation)


class StoreRendezvous:
    """Where one worker meets the others.

    Args:
        worker: This worker's id.
        host: Address at which the others reach it.
        is_superseded: Called while waiting for others: whether a newer generation is known.
    """

    def __init__(self, worker: str, host: str, is_superseded: Callable[[Directive], bool]) -> None:
        self.worker, self.host, self.is_superseded = worker, host, is_superseded
        self.own = KeyValueServer(host)
        self.address = self.own.address
        self.reached: dict[str, KeyValueClient] = {}

    def invitation(self) -> Invitation | None:
        """Return the newest invitation that a leader sent to this worker."""
        content = self.own.read("invitation")
        return None if content is None else _INVITATION.validate_json(content)

    def invite(self, directive: Directive, newcomers: Sequence[Member]) -> None:
        """As leader, invite newcomers, wait until all have come, and announce the generation.

        Runs beside training, over connections of its own.

        Raises:
            GenerationBroken: One cannot be reached, or does not come.
        """
        caller = Member(self.worker, self.address)
        content = _INVITATION.dump_json(Invitation(directive, caller)).decode()
        try:
            for newcomer in newcomers:
                with closing(KeyValueClient(newcomer.address)) as client:
                    client.set("invitation", content)
        except OSError as error:
            raise GenerationBroken(f"a newcomer does not answer: {error}") from error
        self._await_arrivals(directive, newcomers)
        self.announce(directive)

    def fetch_announced_directive(self, generation: int, leader: Member) -> Directive:
        """Return the Directive that this leader announced for a generation.

        Raises:
            GenerationBroken: The leader is gone.
        """
        deadline = time.monotonic() + MAX_LEADER_PAUSE
        while True:
            try:
                content = self.store_of(leader).read(f"directive/{generation}")
                break
            except TimeoutError as error:  # a stopped process or a suspended computer may go on
                if time.monotonic() > deadline:
                    raise self._lost(leader, error) from error
                self.reached.pop(leader.address, None)
            except OSError as error:
                raise self._lost(leader, error) from error
        if content is None:
            raise GenerationBroken(
                f"{leader.worker} announced generation {generation}, but its store has no "
                "Directive for it"
            )
        return _DIRECTIVE.validate_json(content)

    def barrier(
        self, directive: Directive, expected: Sequence[Member], host: Member, *, may_abort: bool
    ) -> None:
        """Wait until all expected members have come to the host.

        Raises:
            ChangeAborted: One did not come; the generation before goes on.
            GenerationBroken: The host is gone, or this generation is superseded.
        """
        label = generation_label(directive)
        if host.worker == self.worker:
            self.own.set(f"here/{label}/{self.worker}", "")
            verdict = self._gather(directive, expected, may_abort=may_abort)
            self.own.set(f"verdict/{label}", verdict)
        else:
            verdict = self._await_verdict(directive, host)
        if verdict == ABORT:
            raise ChangeAborted(f"generation {label} is cancelled: a member did not come")
        if verdict == VOID:
            raise GenerationBroken(f"generation {label} cannot be formed: a member did not come")

    def part(self, directive: Directive, members: Sequence[Member], host: Member) -> None:
        """Let the host of a barrier end only after the others have read what it decided there.

        They would take it for dead, and repair the generation before without it.
        """
        label = generation_label(directive)
        if host.worker != self.worker:
            with suppress(OSError):  # it waits no longer
                self.store_of(host).set(f"parted/{label}/{self.worker}", "")
            return
        deadline = time.monotonic() + PARTING_TIMEOUT
        others = [member for member in members if member.worker != self.worker]
        while others and time.monotonic() < deadline:
            others = self._missing(directive, others, "parted")
            others = [member for member in others if not is_proven_dead(member.address)]

    def cancel(self, directive: Directive) -> None:
        """As host, let those that come to the barrier of a generation stay in the one before."""
        self.own.set(f"verdict/{generation_label(directive)}", ABORT)

    def announce(self, directive: Directive) -> None:
        """As leader, let the others read a Directive."""
        content = _DIRECTIVE.dump_json(directive).decode()
        self.own.set(f"directive/{directive.generation}", content)

    def repair(self, directive: Directive) -> Directive | None:
        """Agree with the other survivors of a broken generation on its next revision.

        Does not wait: call it again until it returns one, or until the controller decides.

        Returns:
            The revision; None while a survivor has not noticed yet, or a silent member may live.
        """
        dead = self.proven_dead(directive.members)
        alive = [member for member in directive.members if member.worker not in dead]
        label = generation_label(directive)
        try:
            store = self.store_of(alive[0])
            store.set(f"broken/{label}/{self.worker}", "")
            if alive[0].worker == self.worker:
                return self._revise(store, directive, alive, dead)
            content = store.read(f"revision/{label}")
        except OSError:
            self.reached.pop(alive[0].address, None)  # it died since: the next survivor hosts
            return None
        return None if content is None else _DIRECTIVE.validate_json(content)

    def proven_dead(self, members: Iterable[Member]) -> set[str]:
        """Return the ids of the other members that are proven dead."""
        others = [member for member in members if member.worker != self.worker]
        return {member.worker for member in others if is_proven_dead(member.address)}

    def store_of(self, member: Member) -> KeyValueServer | KeyValueClient:
        """Return a member's store; raises OSError when it is gone."""
        if member.worker == self.worker:
            return self.own
        if member.address not in self.reached:
            self.reached[member.address] = KeyValueClient(member.address)
        return self.reached[member.address]

    def restart_store(self) -> None:
        """Serve an empty store at another address: keys of past generations are void."""
        self.own.close()
        self.own = KeyValueServer(self.host)
        self.address = self.own.address

    def close(self) -> None:
        """Refuse connections from now on, by which the others know that this worker is gone."""
        self.own.close()
        for store in self.reached.values():
            store.close()

    def _lost(self, member: Member, error: Exception) -> GenerationBroken:
        self.reached.pop(member.address, None)
        return GenerationBroken(f"{member.worker} is gone: {error}")

    def _await_arrivals(self, directive: Directive, newcomers: Sequence[Member]) -> None:
        deadline = time.monotonic() + ARRIVAL_TIMEOUT
        while missing := self._missing(directive, newcomers):
            if time.monotonic() > deadline or any_proven_dead(missing):
                raise GenerationBroken(f"{missing[0].worker} was invited and did not come")

    def _missing(
        self, directive: Directive, members: Sequence[Member], what: str = "here"
    ) -> list[Member]:
        """Wait a moment for members to say here what they do; returns those that have not."""
        label = generation_label(directive)
        keys = {f"{what}/{label}/{member.worker}": member for member in members}
        if self.own.wait(list(keys), RENDEZVOUS_POLL):
            return []
        return [member for key, member in keys.items() if self.own.read(key) is None]

    def _gather(self, directive: Directive, expected: Sequence[Member], *, may_abort: bool) -> str:
        """As host, wait for all members and decide."""
        deadline = time.monotonic() + BARRIER_TIMEOUT
        while missing := self._missing(directive, expected):
            is_late = time.monotonic() > deadline
            is_void = not may_abort and self.is_superseded(directive)
            if is_late or is_void or any_proven_dead(missing):
                return ABORT if may_abort else VOID
        return COMMIT

    def _await_verdict(self, directive: Directive, host: Member) -> str:
        """Come to the host and wait for its decision, also while it is suspended."""
        label = generation_label(directive)
        while True:
            try:
                store = self.store_of(host)
                store.set(f"here/{label}/{self.worker}", "")
                if store.wait([f"verdict/{label}"], RENDEZVOUS_POLL):
                    return store.read(f"verdict/{label}") or VOID
            except TimeoutError:
                self.reached.pop(host.address, None)
            except OSError as error:
                raise self._lost(host, error) from error
            if self.is_superseded(directive) or self._is_invited_elsewhere(directive, host):
                return VOID

    def _is_invited_elsewhere(self, directive: Directive, host: Member) -> bool:
        """Whether another leader formed this generation after the host that is waited for."""
        found = self.invitation()
        if found is None or found.directive.generation != directive.generation:
            return False
        return found.caller != host

    def _revise(
        self,
        store: KeyValueServer | KeyValueClient,
        directive: Directive,
        alive: Sequence[Member],
        dead: Iterable[str],
    ) -> Directive | None:
        """As the first survivor, fix the members that go on, once all survivors have come."""
        label = generation_label(directive)
        if not store.wait([f"broken/{label}/{member.worker}" for member in alive], 0.0):
            return None
        revised = directive.without(set(dead))
        store.set(f"revision/{label}", _DIRECTIVE.dump_json(revised).decode())
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
