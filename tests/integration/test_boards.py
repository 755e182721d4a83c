"""Boards and the meetings at them: real ones on this computer, several in one process."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import PrefixStore

from scavenger.protocol import Directive, Member
from tests.builders import directive
from tests.controller_double import LONG, until
from worker_agent.errors import ChangeAborted, GenerationBroken
from worker_agent.pytorch.process_group import TorchStore
from worker_agent.rendezvous import rendezvous as meetings
from worker_agent.rendezvous import store as boards
from worker_agent.rendezvous.rendezvous import Invitation, StoreRendezvous, is_proven_dead
from worker_agent.rendezvous.store import KeyValueClient, KeyValueServer
from worker_agent.transport import connection as transport
from worker_agent.transport.connection import (
    MAX_METADATA_BYTES,
    FramedConnection,
    FrameHeader,
    MessageKind,
)

HOST = "127.0.0.1"
IN_TIME = LONG
EXAMPLES = count(1)
KEYS = ("a", "b", "c")


@pytest.fixture(scope="module")
def board() -> Iterator[KeyValueServer]:
    board = KeyValueServer(HOST)
    yield board
    board.close()


@pytest.fixture
def client(board: KeyValueServer) -> Iterator[KeyValueClient]:
    with closing(KeyValueClient(board.address)) as client:
        yield client


@pytest.fixture
def key() -> str:
    """A key that is not in use."""
    return f"key{next(EXAMPLES)}"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def mute() -> Iterator[str]:
    """An address that accepts connections and never answers, like a stopped process."""
    with socket.create_server((HOST, 0)) as listening:
        yield f"{HOST}:{listening.getsockname()[1]}"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from(KEYS), st.text()),
        st.tuples(st.just("number"), st.sampled_from(KEYS), st.integers(-(10**9), 10**9)),
        st.tuples(st.just("add"), st.just("sum"), st.integers(-(10**9), 10**9)),
        st.tuples(st.just("read"), st.sampled_from((*KEYS, "sum")), st.none()),
        st.tuples(st.just("wait"), st.sampled_from((*KEYS, "sum")), st.none()),
    ),
    max_size=20,
)


@given(steps=st.lists(st.tuples(st.integers(0, 2), STEPS), max_size=4))
@settings(max_examples=50)
def test_a_board_is_a_dictionary_for_every_client(
    board: KeyValueServer, steps: list[tuple[int, list[tuple[str, str, object]]]]
) -> None:
    expected: dict[str, str] = {}
    example = next(EXAMPLES)
    with (
        closing(KeyValueClient(board.address)) as one,
        closing(KeyValueClient(board.address)) as two,
    ):
        for who, does in steps:
            asked = (board, one, two)[who]
            for deed, name, value in does:
                key = f"{example}/{name}"
                if deed in ("set", "number"):
                    asked.set(key, str(value))
                    expected[key] = str(value)
                elif deed == "add" and isinstance(value, int):
                    total = int(expected.get(key, "0")) + value
                    assert asked.add(key, value) == total
                    expected[key] = str(total)
                elif deed == "read":
                    assert asked.read(key) == expected.get(key)
                else:
                    assert asked.wait([key], 0.0) == (key in expected)


@pytest.mark.parametrize("timeout", [1, 1.0])
def test_whole_seconds_are_waited_like_others(
    client: KeyValueClient,
    pool: ThreadPoolExecutor,
    board: KeyValueServer,
    key: str,
    timeout: float,
) -> None:
    waited = pool.submit(client.wait, [key], timeout)
    with pytest.raises(TimeoutError):
        waited.result(0.2)
    board.set(key, "")
    assert waited.result(IN_TIME)


def test_a_time_that_is_no_number_keeps_no_thread_busy(board: KeyValueServer, key: str) -> None:
    host, port = board.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), IN_TIME) as stranger:
        framed = FramedConnection(stranger)
        request = {"do": "wait", "keys": [key], "timeout": float("nan")}
        boards.send_json(framed, MessageKind.STORE, request)
        began = time.process_time()
        stranger.settimeout(0.5)
        with pytest.raises(TimeoutError):  # it waits
            stranger.recv(1)
        assert time.process_time() - began < 0.25
        board.set(key, "")
        stranger.settimeout(None)
        assert boards.receive_json(framed) == {"is": True}


def test_who_waits_hears_what_is_there_and_not_what_never_comes(
    client: KeyValueClient, key: str
) -> None:
    client.set(f"{key}/there", "")
    assert client.wait([f"{key}/there"], 0.0)
    assert client.wait([], 0.0)
    assert not client.wait([f"{key}/there", f"{key}/absent"], 0.05)


@pytest.mark.parametrize("is_own", [True, False])
def test_who_waits_is_woken_by_what_another_writes(
    board: KeyValueServer, pool: ThreadPoolExecutor, key: str, *, is_own: bool
) -> None:
    """Two answer each other many times, so that one always waits when the other writes."""
    rounds = range(30)
    ours = KeyValueServer(HOST)
    first = ours if is_own else KeyValueClient(ours.address)

    def echo() -> bool:
        with closing(KeyValueClient(ours.address)) as second:
            for number in rounds:
                assert second.wait([f"{key}/call/{number}"], 60.0)
                second.set(f"{key}/echo/{number}", "")
        return True

    def call() -> bool:
        for number in rounds:
            first.set(f"{key}/call/{number}", "")
            assert first.wait([f"{key}/echo/{number}"], 60.0)
        return True

    echoing, calling = pool.submit(echo), pool.submit(call)
    try:
        assert calling.result(IN_TIME)
        assert echoing.result(IN_TIME)
    finally:
        first.close()
        ours.close()


def test_many_add_at_once_and_no_sum_is_given_twice(
    board: KeyValueServer, pool: ThreadPoolExecutor, key: str
) -> None:
    def add(_: int) -> list[int]:
        with closing(KeyValueClient(board.address)) as client:
            return [client.add(key, 1) for _ in range(50)]

    sums = sorted(total for each in pool.map(add, range(16)) for total in each)
    assert sums == list(range(1, 16 * 50 + 1))


def test_threads_that_share_a_client_get_their_own_answers(
    client: KeyValueClient, pool: ThreadPoolExecutor, key: str
) -> None:
    def write_and_read(mine: int) -> list[str | None]:
        read = []
        for number in range(50):
            client.set(f"{key}/{mine}", f"{mine}.{number}")
            read.append(client.read(f"{key}/{mine}"))
        return read

    for mine, read in enumerate(pool.map(write_and_read, range(8))):
        assert read == [f"{mine}.{number}" for number in range(50)]


def test_once_a_board_is_closed_its_clients_know(pool: ThreadPoolExecutor) -> None:
    board = KeyValueServer(HOST)
    idle, waiting = KeyValueClient(board.address), KeyValueClient(board.address)
    with closing(idle), closing(waiting):
        assert idle.read("key") is None
        waited = pool.submit(waiting.wait, ["never"], 60.0)
        until(lambda: len(board.server.connections) == 2)
        board.close()
        with pytest.raises(OSError):
            waited.result(IN_TIME)
        for _ in range(2):
            with pytest.raises(OSError):
                idle.read("key")
        with pytest.raises(ConnectionRefusedError):
            KeyValueClient(board.address)
        assert is_proven_dead(board.address)


def test_who_does_not_answer_is_waited_for_a_while_only(
    mute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "ANSWER_GRACE", 0.05)
    for ask in (
        lambda client: client.read("key"),
        lambda client: client.set("key", ""),
        lambda client: client.wait(["key"], 0.05),
    ):
        with pytest.raises(TimeoutError):
            ask(KeyValueClient(mute))


def test_who_waits_for_longer_than_a_connection_takes_is_as_patient_as_it_said(
    board: KeyValueServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "PEER_CONNECT_TIMEOUT", 0.05)
    with closing(KeyValueClient(board.address)) as client:
        assert not client.wait([key], 0.3)


def test_a_late_answer_is_not_taken_for_the_next_ones(
    board: KeyValueServer, client: KeyValueClient, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.set(key, "late")
    monkeypatch.setattr(boards, "ANSWER_GRACE", 0.05)
    with board.changed, pytest.raises(TimeoutError):
        client.read(key)
    with pytest.raises(OSError):
        client.read("another")


def header(size: int) -> bytes:
    """The beginning of a frame that announces so many bytes of JSON."""
    return FrameHeader(MessageKind.STORE, metadata_size=size).to_bytes()


def said(body: bytes) -> bytes:
    return header(len(body)) + body


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        said(b"{]}"),
        said(b"[]"),
        said(b"{}"),
        header(9) + b"{}",
    ],
)
def test_where_another_language_is_spoken_there_is_no_board(answer: bytes) -> None:
    with socket.create_server((HOST, 0)) as listening:
        client = KeyValueClient(f"{HOST}:{listening.getsockname()[1]}")
        connection, _ = listening.accept()
        with closing(client), connection:
            connection.sendall(answer)
            connection.shutdown(socket.SHUT_WR)
            with pytest.raises(ConnectionResetError):
                client.read("key")


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n",
        header(2**32 - 1),
        header(MAX_METADATA_BYTES + 1) + b"{}",
        FrameHeader(MessageKind.STORE, payload_size=8).to_bytes() + b"8" * 8,
        said(b""),
        said(b"[]"),
        said(b"{]}"),
        said(b"\xff\xfe\x00\x80"),
        said(b"[" * 200_000),
        said(b'{"do": "add", "key": "words", "amount": 1}'),
    ],
    ids=range(10),
)
def test_a_client_of_another_protocol_is_disconnected_and_hurts_no_other(
    board: KeyValueServer, client: KeyValueClient, key: str, words: bytes
) -> None:
    client.set("words", "no number")
    host, port = board.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), IN_TIME) as stranger:
        stranger.sendall(words)
        assert hangs_up(stranger)
    client.set(key, "well")
    with closing(KeyValueClient(board.address)) as another:
        assert another.read(key) == "well"


@pytest.mark.parametrize("said", [header(100)[:2], header(100) + b'{"do": "set", '])
def test_a_client_that_stops_within_a_message_holds_up_no_other(
    board: KeyValueServer, client: KeyValueClient, key: str, said: bytes
) -> None:
    host, port = board.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), IN_TIME) as stranger:
        stranger.sendall(said)
        client.set(key, "well")
        with closing(KeyValueClient(board.address)) as another:
            assert another.read(key) == "well"
        stranger.shutdown(socket.SHUT_WR)
        assert hangs_up(stranger)


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"do": "forget", "key": "kept"},
        {"do": "set", "key": "kept"},
        {"do": "set", "key": "kept", "value": 1},
        {"do": "set", "key": ["kept"], "value": "lost"},
        {"do": "add", "key": "kept", "amount": "1"},
        {"do": "wait", "keys": "kept", "timeout": 0.0},
        {"do": ["read"], "key": "kept"},
    ],
)
def test_what_is_asked_wrongly_is_answered_with_nothing(
    board: KeyValueServer, client: KeyValueClient, request_: dict[str, object]
) -> None:
    client.set("kept", "value")
    host, port = board.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), IN_TIME) as stranger:
        framed = FramedConnection(stranger)
        boards.send_json(framed, MessageKind.STORE, request_)
        assert boards.receive_json(framed) == {"is": None}
        boards.send_json(framed, MessageKind.STORE, {"do": "read", "key": "kept"})
        assert boards.receive_json(framed) == {"is": "value"}


def hangs_up(stranger: socket.socket) -> bool:
    try:
        return stranger.recv(1) == b""
    except ConnectionResetError:  # it had not read all
        return True


# The board as PyTorch's store.


@given(value=st.binary())
@settings(max_examples=50)
def test_bytes_come_back_through_pytorch_as_they_were(board: KeyValueServer, value: bytes) -> None:
    store = TorchStore(board.address, IN_TIME)
    with closing(store):
        prefixed = PrefixStore(f"{next(EXAMPLES)}", store)
        prefixed.set("key", value)
        assert prefixed.get("key") == value
        assert prefixed.check(["key"])
        assert not prefixed.check(["key", "absent"])
        assert [prefixed.add("sum", amount) for amount in (2, -5)] == [2, -3]


def test_a_store_waits_for_a_member_and_names_what_did_not_come(
    board: KeyValueServer, pool: ThreadPoolExecutor, key: str
) -> None:
    store, another = TorchStore(board.address, IN_TIME), TorchStore(board.address, 0.05)
    with closing(store), closing(another):
        got = pool.submit(store.get, key)
        with pytest.raises(RuntimeError, match="absent"):
            another.get("absent")
        with pytest.raises(RuntimeError, match="absent"):
            another.wait(["absent"], timedelta(seconds=0.01))
        another.set(key, "come")
        assert got.result(IN_TIME) == b"come"


# Meetings.

Gather = Callable[[str], StoreRendezvous]


class Superseded:
    """Whether a newer generation is known; counts how often it was asked."""

    def __init__(self) -> None:
        self.is_known = False
        self.asked = 0

    def __call__(self, _: Directive) -> bool:
        self.asked += 1
        return self.is_known


@pytest.fixture
def gather() -> Iterator[Gather]:
    """Open meetings, one for each worker."""
    opened: list[StoreRendezvous] = []

    def gather(worker: str) -> StoreRendezvous:
        opened.append(StoreRendezvous(worker, HOST, Superseded()))
        return opened[-1]

    yield gather
    for rendezvous in opened:
        leave(rendezvous)


@pytest.fixture
def trio(gather: Gather) -> tuple[StoreRendezvous, StoreRendezvous, StoreRendezvous]:
    return gather("a"), gather("b"), gather("c")


def leave(rendezvous: StoreRendezvous) -> None:
    """End as a process does: its port is closed and its connections break."""
    rendezvous.close()
    for client in rendezvous.reached.values():
        if isinstance(client, KeyValueClient):
            client.close()


def member(rendezvous: StoreRendezvous) -> Member:
    return Member(rendezvous.worker, rendezvous.address)


def generation(number: int, *met: StoreRendezvous) -> Directive:
    members = tuple(member(rendezvous) for rendezvous in met)
    return directive(len(met), 12 * len(met), generation=number, members=members)


def supersede(rendezvous: StoreRendezvous) -> None:
    assert isinstance(rendezvous.is_superseded, Superseded)
    rendezvous.is_superseded.is_known = True


def times_asked(rendezvous: StoreRendezvous) -> int:
    assert isinstance(rendezvous.is_superseded, Superseded)
    return rendezvous.is_superseded.asked


def come(
    pool: ThreadPoolExecutor,
    planned: Directive,
    *come: StoreRendezvous,
    host: StoreRendezvous | None = None,
    may_abort: bool = True,
) -> list[Future[None]]:
    """Let workers come to the host, which is the first member if it is not said."""
    where = planned.members[0] if host is None else member(host)
    return [
        pool.submit(rendezvous.barrier, planned, planned.members, where, may_abort=may_abort)
        for rendezvous in come
    ]


def test_a_newcomer_is_called_comes_and_all_change(
    trio: tuple[StoreRendezvous, ...], pool: ThreadPoolExecutor
) -> None:
    a, b, c = trio
    planned = generation(2, a, b, c)
    calling = pool.submit(a.invite, planned, [member(c)])
    assert c.own.wait(["invitation"], IN_TIME)
    assert c.invitation() == Invitation(planned, member(a))
    assert b.invitation() is None
    with pytest.raises(
        GenerationBroken, match="its store has no Directive for it"
    ):  # it is not announced before all are there
        b.fetch_announced_directive(2, member(a))
    agreed = come(pool, planned, c)
    calling.result(IN_TIME)
    assert (
        b.fetch_announced_directive(2, member(a))
        == a.fetch_announced_directive(2, member(a))
        == planned
    )
    agreed += come(pool, planned, a, b)
    assert [each.result(IN_TIME) for each in agreed] == [None] * 3


def test_a_newcomer_that_refuses_is_not_called(trio: tuple[StoreRendezvous, ...]) -> None:
    a, b, c = trio
    b.close()
    with pytest.raises(GenerationBroken, match="does not answer"):
        a.invite(generation(2, a, b, c), [member(b), member(c)])
    assert a.own.read("directive/2") is None


def test_a_newcomer_that_does_not_come_is_not_waited_for_long(
    trio: tuple[StoreRendezvous, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, _ = trio
    monkeypatch.setattr(meetings, "ARRIVAL_TIMEOUT", 0.05)
    with pytest.raises(GenerationBroken, match="b was invited and did not come"):
        a.invite(generation(2, a, b), [member(b)])
    assert a.own.read("directive/2") is None


def test_a_newcomer_that_dies_is_not_waited_for(
    trio: tuple[StoreRendezvous, ...], pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, _ = trio
    monkeypatch.setattr(meetings, "ARRIVAL_TIMEOUT", 10 * IN_TIME)
    calling = pool.submit(a.invite, generation(2, a, b), [member(b)])
    assert b.own.wait(["invitation"], IN_TIME)
    until(lambda: not b.own.server.connections)  # the caller has its answer
    leave(b)
    with pytest.raises(GenerationBroken, match="b was invited and did not come"):
        calling.result(IN_TIME)


def test_no_worker_is_told_anything_by_a_leader_that_is_gone(
    trio: tuple[StoreRendezvous, ...],
) -> None:
    a, b, _ = trio
    leave(a)
    with pytest.raises(GenerationBroken, match="a is gone"):
        b.fetch_announced_directive(2, member(a))


def test_a_leader_that_only_sleeps_is_waited_for(
    trio: tuple[StoreRendezvous, ...], pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, _ = trio
    planned = generation(2, a, b)
    a.invite(planned, [])
    monkeypatch.setattr(boards, "ANSWER_GRACE", 0.05)
    with a.own.changed:  # as if it was stopped: it accepts and does not answer
        telling = pool.submit(b.fetch_announced_directive, 2, member(a))
        until(lambda: len(a.own.server.connections) > 1)  # it gave up once and came again
    assert telling.result(IN_TIME) == planned


def test_a_leader_that_sleeps_for_long_is_lost(
    mute: str, trio: tuple[StoreRendezvous, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "ANSWER_GRACE", 0.01)
    monkeypatch.setattr(meetings, "MAX_LEADER_PAUSE", 0.05)
    with pytest.raises(GenerationBroken, match="a is gone"):
        trio[1].fetch_announced_directive(2, Member("a", mute))


def test_no_member_leaves_before_all_have_come(
    trio: tuple[StoreRendezvous, ...], pool: ThreadPoolExecutor
) -> None:
    planned = generation(2, *trio)
    agreed = come(pool, planned, *trio[:2])
    assert trio[0].own.wait(["here/2.0/a", "here/2.0/b"], IN_TIME)
    assert not trio[0].own.wait(["verdict/2.0"], 0.2)
    assert not any(each.done() for each in agreed)
    agreed += come(pool, planned, trio[2])
    assert [each.result(IN_TIME) for each in agreed] == [None] * 3


@pytest.mark.parametrize(
    ("may_abort", "raised"), [(True, ChangeAborted), (False, GenerationBroken)]
)
def test_all_stay_when_one_that_is_expected_is_dead(
    trio: tuple[StoreRendezvous, ...],
    pool: ThreadPoolExecutor,
    raised: type[Exception],
    *,
    may_abort: bool,
) -> None:
    planned = generation(2, *trio)
    leave(trio[2])
    for each in come(pool, planned, *trio[:2], may_abort=may_abort):
        with pytest.raises(raised, match="a member did not come"):
            each.result(IN_TIME)


@pytest.mark.parametrize(
    ("may_abort", "raised"), [(True, ChangeAborted), (False, GenerationBroken)]
)
def test_all_stay_when_one_is_silent_for_long(
    trio: tuple[StoreRendezvous, ...],
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    raised: type[Exception],
    *,
    may_abort: bool,
) -> None:
    monkeypatch.setattr(meetings, "BARRIER_TIMEOUT", 0.1)
    planned = generation(2, *trio)
    for each in come(pool, planned, *trio[:2], may_abort=may_abort):
        with pytest.raises(raised, match="a member did not come"):
            each.result(IN_TIME)


def test_a_generation_is_void_for_all_when_the_host_knows_a_newer_one(
    trio: tuple[StoreRendezvous, ...], pool: ThreadPoolExecutor
) -> None:
    agreed = come(pool, generation(2, *trio), *trio[:2], may_abort=False)
    until(lambda: times_asked(trio[0]))
    assert not any(each.done() for each in agreed)
    supersede(trio[0])
    for each in agreed:
        with pytest.raises(GenerationBroken, match="cannot be formed"):
            each.result(IN_TIME)


def test_a_change_that_was_announced_is_made_though_the_host_knows_a_newer_one(
    trio: tuple[StoreRendezvous, ...], pool: ThreadPoolExecutor
) -> None:
    planned = generation(2, *trio)
    supersede(trio[0])
    agreed = come(pool, planned, *trio[:2])
    assert trio[0].own.wait(["here/2.0/a", "here/2.0/b"], IN_TIME)
    assert not trio[0].own.wait(["verdict/2.0"], 0.2)
    agreed += come(pool, planned, trio[2])
    assert [each.result(IN_TIME) for each in agreed] == [None] * 3


def test_who_waits_at_a_host_leaves_when_it_knows_a_newer_generation(
    trio: tuple[StoreRendezvous, ...], pool: ThreadPoolExecutor
) -> None:
    a, b, _ = trio
    (waiting,) = come(pool, generation(2, a, b), b)
    assert a.own.wait(["here/2.0/b"], IN_TIME)
    until(lambda: times_asked(b))
    assert not waiting.done()
    supersede(b)
    with pytest.raises(GenerationBroken):
        waiting.result(IN_TIME)


def test_who_waits_at_a_host_leaves_when_another_calls_it_for_the_same_generation(
    trio: tuple[StoreRendezvous, ...], pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, newcomer = trio
    planned = generation(2, a, b, newcomer)
    (waiting,) = come(pool, planned, newcomer)
    assert a.own.wait(["here/2.0/c"], IN_TIME)
    calling = pool.submit(b.invite, planned, [member(newcomer)])
    with pytest.raises(GenerationBroken):
        waiting.result(IN_TIME)
    (coming,) = come(pool, planned, newcomer, host=b)
    calling.result(IN_TIME)
    leave(b)
    with pytest.raises(GenerationBroken, match="b is gone"):
        coming.result(IN_TIME)


def test_a_host_that_only_sleeps_is_waited_for(
    trio: tuple[StoreRendezvous, ...], pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, _ = trio
    planned = generation(2, a, b)
    monkeypatch.setattr(boards, "ANSWER_GRACE", 0.05)
    with a.own.changed:
        agreed = come(pool, planned, b)
        until(lambda: times_asked(b))  # it gave up waiting for an answer once
    agreed += come(pool, planned, a)
    assert [each.result(IN_TIME) for each in agreed] == [None] * 2


# Repair.


def repaired(
    pool: ThreadPoolExecutor, broken: Directive, *survivors: StoreRendezvous
) -> list[Directive]:
    """Let survivors ask until all have an answer."""
    answers: dict[str, Directive] = {}

    def have_all() -> bool:
        missing = [rendezvous for rendezvous in survivors if rendezvous.worker not in answers]
        found = pool.map(lambda rendezvous: (rendezvous.worker, rendezvous.repair(broken)), missing)
        answers.update({worker: revised for worker, revised in found if revised is not None})
        return len(answers) == len(survivors)

    until(have_all)
    return [answers[rendezvous.worker] for rendezvous in survivors]


def test_survivors_agree_on_one_revision_without_the_dead(
    gather: Gather, pool: ThreadPoolExecutor
) -> None:
    all_four = a, b, c, d = [gather(name) for name in "abcd"]
    broken = generation(2, *all_four)
    leave(b)
    assert repaired(pool, broken, a, c, d) == [broken.without({"b"})] * 3
    again = broken.without({"b"})
    leave(d)
    assert repaired(pool, again, a, c) == [again.without({"d"})] * 2
    assert again.without({"d"}).revision == 2


def test_no_member_goes_on_while_a_silent_one_still_accepts(
    trio: tuple[StoreRendezvous, ...], pool: ThreadPoolExecutor
) -> None:
    a, b, c = trio
    broken = generation(2, *trio)
    for _ in range(5):
        assert [a.repair(broken), b.repair(broken)] == [None, None]
    leave(c)
    assert repaired(pool, broken, a, b) == [broken.without({"c"})] * 2


def test_no_member_goes_on_while_the_first_sleeps(
    trio: tuple[StoreRendezvous, ...], pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = trio
    broken = generation(2, *trio)
    leave(c)
    monkeypatch.setattr(boards, "ANSWER_GRACE", 0.05)
    with a.own.changed:
        assert [b.repair(broken) for _ in range(3)] == [None] * 3
    assert repaired(pool, broken, a, b) == [broken.without({"c"})] * 2


def test_when_the_first_survivor_dies_the_next_one_is_the_host(
    gather: Gather, pool: ThreadPoolExecutor
) -> None:
    all_four = a, b, c, d = [gather(name) for name in "abcd"]
    broken = generation(2, *all_four)
    leave(d)
    assert [b.repair(broken), c.repair(broken)] == [None, None]
    assert a.own.read("broken/2.0/b") is not None
    leave(a)
    assert repaired(pool, broken, b, c) == [broken.without({"a", "d"})] * 2
    assert b.own.read("revision/2.0") is not None


def test_the_last_one_goes_on_alone(gather: Gather) -> None:
    a, b = gather("a"), gather("b")
    broken = generation(2, a, b)
    leave(a)
    assert b.repair(broken) == broken.without({"a"})


def test_only_who_refuses_is_dead(trio: tuple[StoreRendezvous, ...], mute: str) -> None:
    a, b, c = trio
    leave(c)
    asleep = Member("d", mute)
    assert a.proven_dead([member(a), member(b), member(c), asleep]) == {"c"}
    leave(a)
    assert a.proven_dead([member(a), member(b)]) == set()  # a member does not ask itself
