"""`ShardServer`: serves one shard of the weights to the workers of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from worker_agent.errors import Fenced, MalformedFrame
from worker_agent.parameter_server.lbfgs_messages import (
    COMBINE_REQUEST,
    COMMIT_REQUEST,
    GRAM_REQUEST,
    SAVE_REQUEST,
    START_REQUEST,
    parse_result,
    to_metadata,
)
from worker_agent.parameter_server.lbfgs_shard import LbfgsShard
from worker_agent.parameter_server.messages import (
    JOIN_REQUEST,
    SHARD_MANIFEST,
    ShardValues,
    parse_message,
    parse_push,
    parse_stream,
    to_counts,
)
from worker_agent.parameter_server.shard import Contribution, ShardFactory, ShardState
from worker_agent.transport.connection import (
    MAX_PAYLOAD_BYTES,
    FramedConnection,
    FrameHeader,
    MessageKind,
    array_bytes,
    pack_numbers,
    unpack_numbers,
)
from worker_agent.transport.server import FrameServer


def coordinate_elsewhere(_address: str) -> None:
    """Start no coordinator."""


class ShardServer(FrameServer):
    """Serves one shard, to processes that know the job's secret.

    Args:
        host: The only address it listens at.
        secret: What all processes of the job know.
        make_shard: How the framework keeps a shard.
        coordinate: Called with the address of this server when a Sandblaster job begins on it and
            it is the first one, which has the coordinator beside it.
    """

    def __init__(
        self,
        host: str,
        secret: str,
        make_shard: ShardFactory,
        coordinate: Callable[[str], None] = coordinate_elsewhere,
    ) -> None:
        self.state, self.make_shard, self.coordinate = ShardState(), make_shard, coordinate
        super().__init__(host, self._answer, secret=secret)

    def _answer(self, connection: FramedConnection) -> None:
        served = ShardConnection(self.state, self.make_shard, connection)
        served.on_board = lambda: self.coordinate(self.address)
        served.serve()


class ShardConnection:
    """Does what one worker asks for.

    Attributes:
        worker: The worker's id, once it has joined.
        is_moving: Whether it said that it will be back by another connection.
        on_board: Called when the leader of a Sandblaster job has filled this server as the first.
    """

    def __init__(
        self, state: ShardState, make_shard: ShardFactory, connection: FramedConnection
    ) -> None:
        self.state, self.make_shard, self.connection = state, make_shard, connection
        self.worker = ""
        self.is_moving = False
        self.on_board: Callable[[], None] = lambda: None
        self.buffer: ShardValues = np.empty(0)

    def serve(self) -> None:
        """Answer until the connection ends or says something that makes no sense."""
        try:
            while not self.is_moving:
                header = self.connection.receive_header(max_payload=MAX_PAYLOAD_BYTES)
                try:
                    self._answer(header, self.connection.receive_metadata(header))
                except Fenced as error:
                    self.connection.send(FrameHeader(MessageKind.FENCED), str(error).encode())
        finally:
            self.state.unregister(self.worker, self, is_moving=self.is_moving)

    def _answer(self, header: FrameHeader, metadata: bytes) -> None:
        state, key = self.state, header.generation_key
        match header.kind:
            case MessageKind.JOIN:
                request = parse_message(JOIN_REQUEST, metadata)
                self.worker = request.worker
                state.register(self.worker, self)
                is_gone = self.connection.is_closed
                self._reply(state.join(key, header.iteration, request, is_gone))
            case MessageKind.LEAVE:
                self.is_moving = True
            case MessageKind.PUT:
                self._put(header, metadata)
            case MessageKind.EXPORT:
                iteration, manifest, values = state.export_shard(key)
                self._reply(iteration, SHARD_MANIFEST.dump_json(manifest), values)
            case MessageKind.FETCH if state.lbfgs is not None:
                self._reply(header.iteration, payload=[state.lbfgs.point(header.iteration)])
            case MessageKind.TAKE if state.lbfgs is not None:
                _, limit = to_limit(metadata)
                self._reply(metadata=state.require_board().take(self.worker, limit).to_bytes())
            case MessageKind.FETCH:
                weights, clock = state.weights_after(key, header.iteration)
                self._reply(header.iteration, clock.encode(), [weights])
            case MessageKind.PUSH:
                self._push(header, metadata)
            case MessageKind.STREAM:
                self._stream(header, metadata)
            case MessageKind.TAKE:
                count, limit = to_limit(metadata)
                share, is_over = state.take(self.worker, count, limit)
                place = (0, 0) if share is None else (share.start, share.count)
                self._reply(metadata=pack_numbers([is_over, state.samples.samples_used, *place]))
            case MessageKind.FINISH:
                state.finish()
                self._reply()
            case MessageKind.ACCUMULATE:
                self._accumulate(header, metadata)
            case MessageKind.START:
                self._start(metadata, header.payload_size)
            case _:
                self._coordinate(header, metadata)

    def _coordinate(self, header: FrameHeader, metadata: bytes) -> None:
        """Do what the coordinator of a Sandblaster job asks for."""
        state = self.state
        match header.kind:
            case MessageKind.GRAM:
                names = parse_message(GRAM_REQUEST, metadata).names
                self._reply(metadata=pack_numbers(state.require_lbfgs().gram(names)))
            case MessageKind.COMBINE:
                asked = parse_message(COMBINE_REQUEST, metadata)
                self._reply(metadata=pack_numbers(state.require_lbfgs().combine(asked)))
            case MessageKind.COMMIT:
                state.require_lbfgs().commit(parse_message(COMMIT_REQUEST, metadata))
                self._reply()
            case MessageKind.BOARD:
                if metadata:
                    state.require_board().save(parse_message(SAVE_REQUEST, metadata))
                    self._reply()
                else:
                    self._reply(metadata=to_metadata(state.require_board().load()))
            case MessageKind.WAIT:
                (known,) = to_numbers(metadata, 1)
                is_gone = self.connection.is_closed
                found = state.require_board().wait(header.iteration, known, is_gone)
                self._reply(metadata=to_metadata(found))
            case _:
                raise MalformedFrame(f"{header.kind!r} is no request to a parameter server")

    def _put(self, header: FrameHeader, metadata: bytes) -> None:
        manifest = parse_message(SHARD_MANIFEST, metadata)
        if manifest.payload_size != header.payload_size:
            raise MalformedFrame(
                f"{header.payload_size} bytes where {manifest.payload_size} were announced"
            )
        weights, places = self.make_shard(header.iteration, manifest)
        for place in places:
            self.connection.receive_into(array_bytes(place))
        self.state.install_shard(header.generation_key, weights, manifest.clock, manifest.samples)
        self._reply()

    def _start(self, metadata: bytes, payload_size: int) -> None:
        """Take over a shard of a Sandblaster job, whose coordinator begins beside the first one."""
        request = parse_message(START_REQUEST, metadata)
        if request.payload_size != payload_size:
            raise MalformedFrame(f"{payload_size} bytes for {request.size} weights")
        weights = np.empty(request.size, request.precision)
        self.connection.receive_into(array_bytes(weights))
        self.state.install_lbfgs(LbfgsShard(request, weights))
        self._reply()
        if request.server == 0:
            self.on_board()

    def _accumulate(self, header: FrameHeader, metadata: bytes) -> None:
        """Stage a sum of gradients; the first server says whether it counts."""
        shard = self.state.lbfgs
        if shard is None:  # its size is unknown, so the connection cannot go on after an answer
            raise MalformedFrame("a result for vectors that are not here")
        run, loss = parse_result(metadata)
        gradient = np.empty(shard.request.size, shard.dtype)
        self.connection.receive_payload(header, array_bytes(gradient))
        shard.stage(header.iteration, run, gradient)
        counts, used, iteration = True, -1, -1
        if shard.board is not None:
            counts = shard.board.finish(self.worker, header.iteration, run, loss)
            used, iteration = shard.board.samples_used, shard.board.state.iteration
        self._reply(metadata=pack_numbers([counts, used, iteration]))

    def _push(self, header: FrameHeader, metadata: bytes) -> None:
        gradient = self._receive_gradient(header)
        # Taken here, on the connection's own thread: the state is locked while it adds up.
        norm_sq = self.state.require_weights().squared_norm(gradient)
        outcome, weights = self.state.push(
            header.generation_key,
            self.worker,
            header.iteration,
            Contribution(gradient, norm_sq, parse_push(metadata)),
            self.connection.is_closed,
        )
        self._reply(header.iteration + 1, outcome.to_bytes(), [weights])

    def _stream(self, header: FrameHeader, metadata: bytes) -> None:
        """Apply an update, or send the weights, or both, without waiting for other workers."""
        is_fetching, rates, shares = parse_stream(metadata)
        updates_before, samples_used = -1, -1
        if header.payload_size:
            gradient = self._receive_gradient(header)
            updates_before, samples_used = self.state.apply_update(
                self.worker, gradient, rates, shares
            )
        elif shares:  # their steps were skipped
            samples_used = self.state.mark_samples_used(self.worker, shares)
        if not is_fetching:
            self._reply(updates_before + 1, pack_numbers([updates_before, samples_used]))
            return
        self._make_room()
        # Sent from a copy, because sending may take long and others update the weights meanwhile.
        version = self.state.copy_weights_into(self.buffer)
        self._reply(version, pack_numbers([updates_before, samples_used]), [self.buffer])

    def _receive_gradient(self, header: FrameHeader) -> ShardValues:
        self._make_room()
        self.connection.receive_payload(header, array_bytes(self.buffer))
        return self.buffer

    def _make_room(self) -> None:
        """Fit this connection's buffer to the shard, which another worker may have replaced."""
        weights = self.state.weights
        if weights is None:
            raise MalformedFrame("there are no weights here yet")
        if self.buffer.shape != weights.values.shape or self.buffer.dtype != weights.values.dtype:
            self.buffer = np.empty_like(weights.values)

    def _reply(
        self, iteration: int = -1, metadata: bytes = b"", payload: Iterable[ShardValues] = ()
    ) -> None:
        header = FrameHeader(MessageKind.DONE, iteration=iteration)
        self.connection.send(header, metadata, map(array_bytes, payload))


def to_limit(metadata: bytes) -> tuple[int, int]:
    """Return how many samples a worker asks for, and the place above which it wants none."""
    count, limit = to_numbers(metadata, 2)
    return count, limit


def to_numbers(metadata: bytes, expected: int) -> list[int]:
    """Return so many whole numbers; raises MalformedFrame."""
    counts = to_counts(unpack_numbers(metadata))
    if len(counts) != expected:
        raise MalformedFrame(f"{len(counts)} numbers where {expected} were expected")
    return counts
