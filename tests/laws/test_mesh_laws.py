"""Members of a mesh of any size get the same sum to the last bit, and never hang."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_agent.errors import GenerationBroken
from worker_agent.transport.connection import FramedConnection, FrameHeader, MessageKind
from worker_agent.transport.mesh import Mesh, PeerListener, connect_mesh
from worker_agent.transport.server import authenticate

HOST, SECRET = "127.0.0.1", "between us"
SIZES = st.one_of(st.integers(0, 40), st.sampled_from([1 << 16, 300_001]))


def never() -> bool:
    return False


@contextmanager
def meshes(size: int, should_abort: Callable[[], bool] = never) -> Iterator[list[Mesh]]:
    listeners = [PeerListener(HOST, SECRET) for _ in range(size)]
    addresses = [listener.address for listener in listeners]
    made: list[Mesh] = []
    try:
        made += together(
            [
                lambda rank=rank: connect_mesh(
                    listeners[rank], rank, addresses, "1.0", SECRET, should_abort
                )
                for rank in range(size)
            ]
        )
        yield made
    finally:
        for each in (*made, *listeners):
            each.close()


def together(acts: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return what each returns, all called at the same time."""
    with ThreadPoolExecutor(len(acts)) as pool:
        return [future.result() for future in [pool.submit(act) for act in acts]]


@given(
    size=st.integers(2, 5),
    lengths=st.lists(SIZES, min_size=1, max_size=4),
    kind=st.sampled_from(["f2", "f4", "f8"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_all_members_get_the_sum_and_all_rows(
    size: int, lengths: list[int], kind: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    vectors = [[random.normal(size=n).astype(kind) for n in lengths] for _ in range(size)]
    expected = [sum(parts[1:], parts[0]) for parts in zip(*vectors, strict=True)]

    def act(mesh: Mesh) -> Any:
        rank = mesh.rank
        rows = [mesh.all_reduce(vector, bytes([rank])) for vector in vectors[rank]]
        sent = b""
        if rank == size - 1:
            mesh.send([b"from ", b"%d" % rank], range(1, rank))
        elif rank:
            sent = bytes(mesh.receive(size - 1))
        return rows, mesh.all_gather([rank, 0.5]), sent

    with meshes(size) as made:
        for rank, (rows, gathered, sent) in enumerate(
            together([lambda mesh=mesh: act(mesh) for mesh in made])
        ):
            others = {other: bytes([other]) for other in range(size) if other != rank}
            assert all(row == others for row in rows)
            assert [numbers.tolist() for numbers in gathered] == [[r, 0.5] for r in range(size)]
            assert sent == (b"from %d" % (size - 1) if 0 < rank < size - 1 else b"")
    for rank in range(size):
        for vector, total in zip(vectors[rank], expected, strict=True):
            np.testing.assert_array_equal(vector, total)


@given(size=st.integers(2, 4), victim=st.integers(0, 3), length=SIZES)
@settings(max_examples=15, deadline=None)
def test_all_others_notice_that_a_member_is_gone(size: int, victim: int, length: int) -> None:
    victim %= size

    def act(mesh: Mesh) -> bool:
        if mesh.rank == victim:
            mesh.close()
            return True
        try:
            mesh.all_reduce(np.ones(length))
        except GenerationBroken:
            mesh.close()
            return True
        return False

    with meshes(size) as made:
        assert together([lambda mesh=mesh: act(mesh) for mesh in made]) == [True] * size


def test_a_wait_for_a_silent_member_can_be_given_up() -> None:
    is_over = threading.Event()
    with meshes(2, is_over.is_set) as (mesh, _):
        threading.Timer(0.1, is_over.set).start()
        with pytest.raises(GenerationBroken, match="gave up"):
            mesh.all_reduce(np.ones(9))


@pytest.mark.parametrize("theirs", [7, 9])
def test_members_that_train_other_models_are_told_so(theirs: int) -> None:
    def act(mesh: Mesh, length: int) -> str:
        try:
            mesh.all_reduce(np.ones(length))
        except GenerationBroken as error:
            mesh.close()
            return str(error)
        return ""

    with meshes(2) as (one, other):
        said = together([lambda: act(one, 20), lambda: act(other, theirs)])
    assert any("do all workers train the same model" in text for text in said)


def test_a_connection_without_the_secret_is_no_member() -> None:
    listener = PeerListener(HOST, SECRET)
    try:
        host, port = listener.address.split(":")
        stranger = FramedConnection(socket.create_connection((host, int(port))))
        authenticate(stranger, "guessed")
        stranger.send(FrameHeader(MessageKind.JOIN, iteration=1), b"1.0")
        with pytest.raises(OSError, match=r"closed|reset"), closing(stranger):
            stranger.receive_header(max_payload=0)
        assert not listener.arrived
    finally:
        listener.close()
