"""What a parameter server makes of any bytes, any shards and any optimizer."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer

from worker_agent.errors import GenerationBroken, MalformedFrame, UnsupportedServerOptimizer
from worker_agent.parameter_server.client import ParameterServerClient, cut_pieces
from worker_agent.parameter_server.messages import (
    JoinRequest,
    OptimizerSlots,
    PushRequest,
    Segment,
    ShardManifest,
    combine_outcomes,
    pack_stream,
    parse_push,
    parse_stream,
    segments_within,
    shard_ranges,
)
from worker_agent.parameter_server.server import ShardServer
from worker_agent.parameter_server.shard import SampleAllocator
from worker_agent.pytorch.downpour import require_no_momentum
from worker_agent.pytorch.server_shard import (
    SERVER_OPTIMIZERS,
    SegmentOptimizer,
    TorchShard,
    describe_optimizer,
)
from worker_agent.sampler import SampleRange
from worker_agent.transport.connection import (
    FRAME_MAGIC,
    FRAME_VERSION,
    HEADER_LAYOUT,
    MAX_METADATA_BYTES,
    MAX_PAYLOAD_BYTES,
    FrameHeader,
    MessageKind,
    pack_numbers,
    parse_frame_header,
    secret_proof,
    unpack_numbers,
)

SECRET = "between us"
finite = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.lists(finite, max_size=8)
words = st.sampled_from(
    [word for word in MessageKind if word not in (MessageKind.AUTHENTICATE, MessageKind.LEAVE)]
)


@pytest.fixture(scope="module")
def server() -> Iterator[ShardServer]:
    server = ShardServer("127.0.0.1", SECRET, TorchShard.make)
    threading.Thread(target=server.serve, daemon=True).start()
    yield server
    server.close()


def said_to(server: ShardServer, content: bytes) -> bytes:
    """Say something, say no more, and return all that is answered until the server hangs up."""
    host, port = server.address.split(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        try:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                answer += piece
        except OSError:
            pass  # hung up on before all was said
    return answer


def greeted(content: bytes) -> bytes:
    return (
        FrameHeader(MessageKind.AUTHENTICATE, metadata_size=32).to_bytes()
        + secret_proof(SECRET)
        + content
    )


def assert_it_serves(server: ShardServer) -> None:
    """A worker of the job is served after strangers have sent anything."""
    weights = torch.arange(5, dtype=torch.float64)
    parameter = nn.Parameter(weights.clone())
    description = describe_optimizer(torch.optim.SGD([parameter], lr=0.5))
    client = ParameterServerClient([server.address], SECRET, lambda: False)
    turn = (server.state.generation_key[0] + 1, 0)
    client.join(turn, 3, JoinRequest("w", ("w",), False, "now"))
    holding = ShardManifest(
        "float64", description, (Segment(0, 5),), (OptimizerSlots({}, ()),), "now", 0
    )
    client.put(0, 3, holding, [weights.numpy()])
    found = torch.zeros(5, dtype=torch.float64)
    assert client.fetch(3, found.numpy()) == "now"
    assert torch.equal(found, weights)
    said = PushRequest(1.0, False, np.array([7.0]), np.array([0.5]), "later")
    outcome = client.push(3, said, [np.ones(5)], found.numpy())
    assert torch.equal(found, weights - 0.5)
    assert outcome.rows.tolist() == [[7.0]]
    assert outcome.mean_norm_sq == pytest.approx(5.0)
    client.close()


@given(st.binary(max_size=200))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_strangers_are_told_nothing(server: ShardServer, content: bytes) -> None:
    assert said_to(server, content) == b""


@given(
    words,
    st.binary(max_size=120),
    st.binary(max_size=64),
    st.integers(0, 2**64 - 1),
    st.integers(-(2**63), 2**63 - 1),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_no_words_of_a_member_harm_the_server(
    server: ShardServer,
    word: MessageKind,
    note: bytes,
    load: bytes,
    generation: int,
    iteration: int,
) -> None:
    header = FrameHeader(word, generation, 0, iteration, len(note), len(load))
    said_to(server, greeted(header.to_bytes() + note + load))
    assert_it_serves(server)


OPTIONS = {
    "rate": 1.0,
    "tolerance_grad": 0.0,
    "tolerance_change": 0.0,
    "history": 5,
    "batch": 8,
    "portions": 4,
    "is_full": True,
}
BEGINNING = {
    "precision": "float64",
    "size": 5,
    "options": OPTIONS,
    "servers": ["127.0.0.1:1"],
    "server": 0,
    "evaluation": 9,
    "iteration": 0,
    "samples": 0,
}
STATE = {"iteration": 0, "next_evaluation": 10, "point": 9}
REQUESTS: dict[MessageKind, dict[str, Any]] = {
    MessageKind.START: BEGINNING,
    MessageKind.GRAM: {"names": ["x9"]},
    MessageKind.COMBINE: {"out": "x10", "names": ["x9"], "coefficients": [1.0]},
    MessageKind.COMMIT: {"evaluation": 9, "runs": [{"first": 0, "count": 2}], "is_last": False},
    MessageKind.BOARD: {"start": 9, "term": 0, "state": STATE, "evaluation": 9},
}
odd = st.sampled_from(
    [None, -1, 10**30, "", "x", "NaN", [], {}, ["x9", "w"], ["NaN"], [{"first": -1, "count": 0}]]
)


@given(st.sampled_from(sorted(REQUESTS)), st.data(), odd)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_no_request_for_vectors_with_one_wrong_value_harms_the_server(
    server: ShardServer, kind: MessageKind, data: Any, value: Any
) -> None:
    good = json.dumps(BEGINNING).encode()
    begin = FrameHeader(MessageKind.START, metadata_size=len(good), payload_size=40).to_bytes()
    begun = begin + good + bytes(40)
    wrong = {**REQUESTS[kind], data.draw(st.sampled_from(sorted(REQUESTS[kind]))): value}
    note = json.dumps(wrong).encode()
    header = FrameHeader(kind, metadata_size=len(note)).to_bytes()
    said_to(server, greeted(begun + header + note))
    result = pack_numbers(data.draw(st.lists(st.floats(), max_size=4)))
    header = FrameHeader(MessageKind.ACCUMULATE, 0, 0, 9, len(result), 40).to_bytes()
    said_to(server, greeted(begun + header + result + bytes(40)))
    assert_it_serves(server)


def test_what_is_too_large_or_of_another_kind_is_refused() -> None:
    good = FrameHeader(MessageKind.PUSH, 1, 0, 5, metadata_size=8, payload_size=80)
    assert parse_frame_header(good.to_bytes(), max_payload=80) == good
    wrong = [
        HEADER_LAYOUT.pack(b"GET ", FRAME_VERSION, 7, 0, 0, 1, 5, 0),
        HEADER_LAYOUT.pack(FRAME_MAGIC, FRAME_VERSION + 1, 7, 0, 0, 1, 5, 0),
        HEADER_LAYOUT.pack(FRAME_MAGIC, FRAME_VERSION, 200, 0, 0, 1, 5, 0),
        HEADER_LAYOUT.pack(FRAME_MAGIC, FRAME_VERSION, 7, 0, MAX_METADATA_BYTES + 1, 1, 5, 0),
        HEADER_LAYOUT.pack(FRAME_MAGIC, FRAME_VERSION, 7, 0, 0, 1, 5, MAX_PAYLOAD_BYTES + 1),
    ]
    for content in wrong:
        with pytest.raises(MalformedFrame):
            parse_frame_header(content, max_payload=MAX_PAYLOAD_BYTES)


def test_who_does_not_know_the_secret_changes_nothing(server: ShardServer) -> None:
    assert_it_serves(server)
    before = server.state.generation_key
    stranger = ParameterServerClient([server.address], "guessed", lambda: False)
    with pytest.raises(GenerationBroken):
        stranger.join((before[0] + 1, 0), 0, JoinRequest("w", ("w",), False, "now"))
    stranger.close()
    assert server.state.generation_key == before


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(-1, 2**53), words)
def test_headers_say_what_was_meant(
    generation: int, revision: int, iteration: int, word: MessageKind
) -> None:
    header = FrameHeader(word, generation, revision, iteration, 3, 4)
    assert parse_frame_header(header.to_bytes(), max_payload=4) == header


@given(finite, st.booleans(), numbers, numbers, st.text(max_size=20))
def test_pushes_say_what_was_meant(
    share: float, is_skipped: bool, row: list[float], rates: list[float], clock: str
) -> None:
    said = parse_push(
        PushRequest(share, is_skipped, np.array(row), np.array(rates), clock).to_bytes()
    )
    assert (said.share, said.is_skipped, said.clock) == (share, is_skipped, clock)
    assert said.row.tolist() == row
    assert said.rates.tolist() == rates


shares = st.lists(st.builds(SampleRange, st.integers(0, 2**40), st.integers(1, 2**20)), max_size=5)


@given(st.booleans(), numbers, shares)
def test_updates_say_what_was_meant(
    is_fetching: bool, rates: list[float], used: list[SampleRange]
) -> None:
    said = parse_stream(pack_stream(is_fetching, rates, used))
    assert said[0] == is_fetching
    assert said[1].tolist() == rates
    assert said[2] == used


@given(st.binary(max_size=64))
def test_notes_that_make_no_sense_are_garbled_and_nothing_else(note: bytes) -> None:
    for read in (unpack_numbers, parse_push, parse_stream):
        try:
            read(note)
        except MalformedFrame:
            continue


segments = st.lists(st.builds(Segment, st.integers(0, 3), st.integers(1, 30)), min_size=1)


@given(segments, st.integers(1, 9))
def test_every_value_belongs_to_one_shard_and_keeps_its_group(
    parameters: list[Segment], servers: int
) -> None:
    size = sum(segment.size for segment in parameters)
    edges = shard_ranges(size, servers)
    assert [edges[0][0], edges[-1][1]] == [0, size]
    assert all(one[1] == other[0] for one, other in pairwise(edges))
    groups = [segment.group for segment in parameters for _ in range(segment.size)]
    found = [
        segment.group
        for low, high in edges
        for segment in segments_within(parameters, low, high)
        for _ in range(segment.size)
    ]
    assert found == groups


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(1, 5))
def test_gradients_are_sent_from_where_they_lie(sizes: list[int], servers: int) -> None:
    whole = np.arange(sum(sizes), dtype=np.float64)
    pieces = np.split(whole, np.cumsum(sizes)[:-1])
    parts = cut_pieces(pieces, shard_ranges(len(whole), servers))
    flat = [part for several in parts for part in several]
    assert np.concatenate([whole[:0], *flat]).tolist() == whole.tolist()
    assert [sum(map(len, several)) for several in parts] == [
        high - low for low, high in shard_ranges(len(whole), servers)
    ]


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.data())
def test_norms_of_shards_add_up(workers: int, servers: int, columns: int, data: Any) -> None:
    rows = np.arange(workers * columns, dtype=float).reshape(workers, columns)
    norms = np.array(
        data.draw(
            st.lists(
                st.lists(st.floats(0, 9), min_size=workers + 1, max_size=workers + 1),
                min_size=servers,
                max_size=servers,
            )
        )
    )
    told = combine_outcomes([pack_numbers([*each, *rows.ravel()]) for each in norms], columns)
    assert told.mean_norm_sq == pytest.approx(norms[:, 0].sum())
    assert told.norms_sq == pytest.approx(norms[:, 1:].sum(axis=0))
    assert told.rows.tolist() == rows.tolist()


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"betas": (0.8, 0.99), "weight_decay": 0.01, "amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "Adagrad": {"lr_decay": 0.01, "weight_decay": 0.01, "initial_accumulator_value": 0.1},
    "Adadelta": {"rho": 0.8, "weight_decay": 0.01},
    "Adamax": {"weight_decay": 0.01},
    "NAdam": {"weight_decay": 0.01},
    "RAdam": {"weight_decay": 0.01},
    "RMSprop": {"momentum": 0.5, "centered": True, "weight_decay": 0.01},
}


def two_groups(kind: str, first: Tensor, second: Tensor) -> Optimizer:
    make: Any = SERVER_OPTIMIZERS[kind]
    groups = [{"params": [first]}, {"params": [second], "lr": 0.03, "weight_decay": 0.0}]
    made: Optimizer = make(groups, lr=0.01, **OPTIMIZERS[kind])
    return made


@pytest.mark.parametrize("kind", sorted(SERVER_OPTIMIZERS))
@given(st.integers(1, 4), st.integers(0, 2**20))
@settings(max_examples=8)
def test_an_optimizer_at_servers_is_that_of_one_process(kind: str, servers: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    start = torch.randn(23, generator=random, dtype=torch.float64)
    alone = [nn.Parameter(start[:9].clone()), nn.Parameter(start[9:].clone())]
    optimizer = two_groups(kind, *alone)
    edges = shard_ranges(23, servers)
    flats = [start[low:high].clone() for low, high in edges]
    cut = [segments_within([Segment(0, 9), Segment(1, 14)], low, high) for low, high in edges]
    shards = [
        SegmentOptimizer(describe_optimizer(optimizer), each, flat)
        for each, flat in zip(cut, flats, strict=True)
    ]
    for step in range(6):
        if step == 3:  # what one server held, another goes on with
            shards = [
                moved(shard, optimizer, flat) for shard, flat in zip(shards, flats, strict=True)
            ]
        gradient = torch.randn(23, generator=random, dtype=torch.float64)
        rates = [0.01 / (step + 1), 0.03 / (step + 1)]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        alone[0].grad, alone[1].grad = gradient[:9], gradient[9:]
        optimizer.step()
        for shard, flat, (low, high) in zip(shards, flats, edges, strict=True):
            shard.step(flat, gradient[low:high].clone(), rates)
    expected = torch.cat([parameter.detach() for parameter in alone])
    assert torch.allclose(torch.cat(flats), expected, rtol=0, atol=1e-12)


def moved(shard: SegmentOptimizer, optimizer: Optimizer, flat: Tensor) -> SegmentOptimizer:
    slots, vectors = shard.slots()
    fresh = SegmentOptimizer(describe_optimizer(optimizer), shard.segments, flat)
    for room, vector in zip(fresh.restore(slots), vectors, strict=True):
        room.copy_(vector)
    return fresh


def test_what_cannot_run_at_servers_is_refused_with_a_remedy() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    with pytest.raises(
        UnsupportedServerOptimizer, match=r"LBFGS cannot run on parameter servers: use .*AdamW"
    ):
        describe_optimizer(torch.optim.LBFGS([parameter]))
    with pytest.raises(
        UnsupportedServerOptimizer, match=r"does not converge with SGD with momentum.*Adagrad"
    ):
        require_no_momentum(torch.optim.SGD([parameter], lr=0.1, momentum=0.9))
    with pytest.raises(UnsupportedServerOptimizer, match="does not converge with Adam,"):
        require_no_momentum(torch.optim.Adam([parameter]))
    require_no_momentum(torch.optim.SGD([parameter], lr=0.1))


deeds = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["take", "finish", "die"]), st.integers(1, 9)),
    max_size=60,
)


@given(deeds, st.integers(0, 80))
def test_every_sample_is_used_once_though_workers_die(
    plan: list[tuple[int, str, int]], limit: int
) -> None:
    cursor = SampleAllocator()
    held: dict[str, list[SampleRange]] = {}
    used: Counter[int] = Counter()

    def finish(worker: str) -> None:
        done = held.pop(worker, [])
        cursor.finish(worker, done)
        used.update(
            place for share in done for place in range(share.start, share.start + share.count)
        )

    for number, deed, count in plan:
        worker = f"w{number}"
        if deed == "take" and (share := cursor.take(worker, count, limit)):
            held.setdefault(worker, []).append(share)
        elif deed == "finish":
            finish(worker)
        elif deed == "die":
            cursor.give_back(worker)
            held.pop(worker, None)
    for worker in list(held):
        finish(worker)
    while share := cursor.take("last", 7, limit):
        held.setdefault("last", []).append(share)
    finish("last")
    assert used == Counter(range(limit))
    assert cursor.samples_used == limit
    assert cursor.is_over(limit)
