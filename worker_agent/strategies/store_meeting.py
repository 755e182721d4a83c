"""StoreMeeting: workers agree on generations through small key-value stores, one served by each.

A planned change has two phases. First the leader calls the newcomers and waits, beside training,
until all have come. Then it announces the change; at that iteration boundary every old and new
member comes to the leader's store, and the leader decides: commit, or abort when one has not come.
Nobody leaves the old generation before it has read the verdict.

A generation that broke is repaired by its survivors when every missing member is proven dead: its
computer refuses connections to its store. A member that is only silent may wake up and train on,
so the controller has to say who goes on.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from pydantic import TypeAdapter
from torch._C._distributed_c10d import TCPStore

from scavenger.protocol import Directive, Member
from worker_agent.errors import Aborted, Broken
from worker_agent.strategies.strategy import Call

REACH = timedelta(seconds=2)
ANSWER = timedelta(seconds=20)
PROBE = 0.5  # seconds a computer has to answer or to refuse
POLL = 0.002
PROBE_EVERY = 0.05
COMING = 10.0  # seconds a called newcomer has to come
GATHERING = 20.0  # seconds the host waits for those it expects

COMMIT, ABORT, VOID = "commit", "abort", "void"
DIRECTIVE: TypeAdapter[Directive] = TypeAdapter(Directive)
CALL: TypeAdapter[Call] = TypeAdapter(Call)


class StoreMeeting:
    """Where one worker meets the others.

    Args:
        worker: This worker's id.
        host: Address at which the others reach it.
        is_superseded: Asked while waiting for others: whether a newer generation is known.
    """

    def __init__(self, worker: str, host: str, is_superseded: Callable[[Directive], bool]) -> None:
        self.worker, self.host, self.is_superseded = worker, host, is_superseded
        self.own: TCPStore | None = TCPStore(
            host, 0, is_master=True, wait_for_workers=False, timeout=ANSWER
        )
        self.address = f"{host}:{self.own.port}"
        self.reached: dict[str, TCPStore] = {}

    def called(self) -> Call | None:
        """Return the newest call a leader made to this worker."""
        own = self._own
        return CALL.validate_json(own.get("called")) if own.check(["called"]) else None

    def call(self, directive: Directive, newcomers: Sequence[Member]) -> None:
        """As leader, summon newcomers and wait until all have come.

        Runs beside training, over connections of its own.

        Raises:
            Broken: One cannot be reached, or does not come; those that came are told to go.
        """
        caller = Member(self.worker, self.address)
        content = CALL.dump_json(Call(directive, caller)).decode()
        try:
            own = connect(self.address, REACH)
            for newcomer in newcomers:
                connect(newcomer.address, REACH).set("called", content)
            self._await_arrivals(own, directive, newcomers)
            own.set(f"directive/{directive.generation}", DIRECTIVE.dump_json(directive).decode())
        except (RuntimeError, OSError) as error:
            raise Broken(f"a newcomer does not answer: {error}") from error

    def told(self, generation: int, leader: Member) -> Directive:
        """Return the Directive this leader announced for a generation.

        Raises:
            Broken: The leader is gone.
        """
        try:
            return DIRECTIVE.validate_json(self.reach(leader).get(f"directive/{generation}"))
        except (RuntimeError, OSError) as error:
            raise self._lost(leader, error) from error

    def agree(
        self, directive: Directive, expected: Sequence[Member], host: Member, *, may_abort: bool
    ) -> None:
        """Wait until all that are expected have come to the host.

        Raises:
            Aborted: One did not come; the generation before goes on.
            Broken: The host is gone, or this generation is superseded.
        """
        turn = turn_of(directive)
        try:
            store = self.reach(host)
            store.set(f"here/{turn}/{self.worker}", "")
            if host.worker == self.worker:
                verdict = self._gather(store, directive, expected, may_abort=may_abort)
                store.set(f"verdict/{turn}", verdict)
            else:
                verdict = self._await_verdict(store, directive, host)
        except (RuntimeError, OSError) as error:
            raise self._lost(host, error) from error
        if verdict == ABORT:
            raise Aborted(f"generation {turn} is called off: not everybody came")
        if verdict == VOID:
            raise Broken(f"generation {turn} cannot be formed: not everybody came")

    def repair(self, directive: Directive) -> Directive | None:
        """Agree with the other survivors of a broken generation on its next revision.

        Does not wait: call it again until it answers, or until the controller has.

        Returns:
            The revision; None while a survivor has not noticed yet, or a silent one may live.
        """
        dead = self.dead(directive.members)
        alive = [member for member in directive.members if member.worker not in dead]
        turn = turn_of(directive)
        try:
            store = self.reach(alive[0])
            store.set(f"broken/{turn}/{self.worker}", "")
            if alive[0].worker == self.worker:
                return self._revise(store, directive, alive, dead)
            if store.check([f"revision/{turn}"]):
                return DIRECTIVE.validate_json(store.get(f"revision/{turn}"))
        except (RuntimeError, OSError):
            self.reached.pop(alive[0].address, None)  # it died since: the next one hosts
        return None

    def dead(self, members: Iterable[Member]) -> set[str]:
        """Return those of the others that are proven dead."""
        others = [member for member in members if member.worker != self.worker]
        return {member.worker for member in others if is_dead(member.address)}

    def reach(self, member: Member) -> TCPStore:
        """Return a connection to a member's store; raises RuntimeError when it is gone."""
        if member.worker == self.worker:
            return self._own
        if member.address not in self.reached:
            self.reached[member.address] = self.reach_anew(member)
        return self.reached[member.address]

    def reach_anew(self, member: Member) -> TCPStore:
        """Return a connection nobody else waits on; raises RuntimeError when the member is gone."""
        store = connect(member.address, REACH)
        store.set_timeout(ANSWER)
        return store

    def close(self) -> None:
        """Stop serving others: from now on they know that this worker is gone."""
        self.reached.clear()
        self.own = None

    @property
    def _own(self) -> TCPStore:
        if self.own is None:
            raise RuntimeError("this worker has left")
        return self.own

    def _lost(self, member: Member, error: Exception) -> Broken:
        self.reached.pop(member.address, None)
        return Broken(f"{member.worker} is gone: {error}")

    def _await_arrivals(
        self, own: TCPStore, directive: Directive, newcomers: Sequence[Member]
    ) -> None:
        keys = {m: f"here/{turn_of(directive)}/{m.worker}" for m in newcomers}
        deadline = time.monotonic() + COMING
        while missing := [m for m, key in keys.items() if not own.check([key])]:
            if time.monotonic() > deadline or any_dead(missing):
                raise Broken(f"{missing[0].worker} was called and did not come")
            time.sleep(POLL)

    def _gather(
        self,
        store: TCPStore,
        directive: Directive,
        expected: Sequence[Member],
        *,
        may_abort: bool,
    ) -> str:
        """Wait for everybody and decide."""
        turn = turn_of(directive)
        deadline = time.monotonic() + GATHERING
        looked = time.monotonic()
        while True:
            missing = [m for m in expected if not store.check([f"here/{turn}/{m.worker}"])]
            if not missing:
                return COMMIT
            now = time.monotonic()
            if now > deadline or (not may_abort and self.is_superseded(directive)):
                return ABORT if may_abort else VOID
            if now - looked > PROBE_EVERY:
                if any_dead(missing):
                    return ABORT if may_abort else VOID
                looked = time.monotonic()
            time.sleep(POLL)

    def _await_verdict(self, store: TCPStore, directive: Directive, host: Member) -> str:
        key = f"verdict/{turn_of(directive)}"
        while not store.check([key]):
            if self.is_superseded(directive) or self._is_called_elsewhere(directive, host):
                return VOID
            time.sleep(POLL)
        return store.get(key).decode()

    def _is_called_elsewhere(self, directive: Directive, host: Member) -> bool:
        call = self.called()
        is_meant = call is not None and call.directive.generation == directive.generation
        return call is not None and is_meant and call.caller != host

    def _revise(
        self, store: TCPStore, directive: Directive, alive: Sequence[Member], dead: Iterable[str]
    ) -> Directive | None:
        """As the first survivor, fix who goes on once all survivors have come."""
        turn = turn_of(directive)
        if not store.check([f"broken/{turn}/{member.worker}" for member in alive]):
            return None
        revised = directive.without(set(dead))
        store.set(f"revision/{turn}", DIRECTIVE.dump_json(revised).decode())
        return revised


def turn_of(directive: Directive) -> str:
    """Name one attempt of a generation."""
    return f"{directive.generation}.{directive.revision}"


def connect(address: str, timeout: timedelta) -> TCPStore:
    """Connect to the store another worker serves; raises RuntimeError when there is none."""
    if is_dead(address):
        raise ConnectionRefusedError(f"nobody serves {address}")
    host, port = address.rsplit(":", 1)
    return TCPStore(host, int(port), is_master=False, timeout=timeout)


def any_dead(members: Iterable[Member]) -> bool:
    """Whether one of them is proven dead."""
    return any(is_dead(member.address) for member in members)


def is_dead(address: str) -> bool:
    """Whether the process behind an address is proven dead: its computer refuses the connection.

    A stopped process still accepts, and a computer that is lost does not answer at all.
    """
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), PROBE).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
