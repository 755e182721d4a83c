"""Lines on their way to the controller: none is lost uncounted, and none comes twice."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.protocol import MAX_LINE_LENGTH, MAX_LINES_OF_BATCH, LogBatch
from scavenger.worker_env import WorkerEnv
from worker_agent.controller import ControllerClient
from worker_agent.errors import ControllerRefused, ControllerUnreachable
from worker_agent.supervisor.log_lines import LineBuffer, LogSender

LINES = st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b"")))
SETTINGS = WorkerEnv(
    controller="http://127.0.0.1:1", token="of-this-machine", job="j", worker="w1", prepaid=60.0
)


def cut(data: st.DataObject, text: bytes) -> list[bytes]:
    """Cut text into the pieces in which a pipe may deliver it."""
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    ends = [*places, len(text)]
    return [text[a:b] for a, b in zip([0, *places], ends, strict=True)]


@given(LINES, st.integers(1, 30), st.integers(1, 300), st.data())
def test_the_newest_lines_are_held_and_the_numbers_tell_of_the_others(
    printed: list[bytes], most: int, size: int, data: st.DataObject
) -> None:
    buffer = LineBuffer(lambda: 0.0, max_lines=most, max_bytes=size)
    for piece in cut(data, b"".join(line + b"\n" for line in printed)):
        buffer.write(piece)
    found, count = buffer.oldest()
    assert count == len(printed)
    held = printed[len(printed) - len(found) :]
    assert [line.content for line in found] == held
    assert [line.number for line in found] == list(range(count - len(found) + 1, count + 1))
    assert len(held) <= most
    assert sum(map(len, held)) <= size
    if len(held) < min(len(printed), most):  # one more would be too much
        assert sum(map(len, printed[-len(held) - 1 :])) > size


class Line:
    """A controller that answers as it is told."""

    def __init__(self, answers: list[Exception | None]) -> None:
        self.answers, self.heard = answers, list[LogBatch]()

    def send_log(self, message: LogBatch) -> None:
        answer = self.answers.pop(0) if self.answers else None
        if answer is None or isinstance(answer, httpx.ReadTimeout):
            self.heard.append(message)
        if isinstance(answer, httpx.ReadTimeout):
            raise ControllerUnreachable("its answer was lost")
        if answer is not None:
            raise answer


ANSWERS = st.sampled_from([None, ControllerUnreachable("away"), httpx.ReadTimeout("lost")])


@given(st.lists(st.tuples(LINES, ANSWERS, ANSWERS), max_size=12))
def test_every_line_arrives_in_order_though_answers_are_lost(
    rounds: list[tuple[list[bytes], Exception | None, Exception | None]],
) -> None:
    sender, printed = LogSender(ControllerClient(SETTINGS), "w1", 60.0), list[str]()
    line = Line([])
    sender._controller = line  # type: ignore[assignment]
    for lines, *answers in rounds:
        sender.lines.write(b"".join(each + b"\n" for each in lines))
        printed += [each.decode(errors="replace").replace("\0", "") for each in lines]
        line.answers = answers
        sender.send_some()
    line.answers = []
    sender.send_some()
    stored = {each.number: each.text for batch in line.heard for each in batch.lines}
    assert [stored[number] for number in sorted(stored)] == printed
    assert list(stored) == sorted(stored)
    assert all(len(batch.lines) <= MAX_LINES_OF_BATCH for batch in line.heard)


def test_a_controller_that_keeps_no_lines_is_asked_once() -> None:
    sender = LogSender(ControllerClient(SETTINGS), "w1", 60.0)
    line = Line([ControllerRefused(404, "there is no such path"), ControllerRefused(404, "")])
    sender._controller = line  # type: ignore[assignment]
    for _ in range(3):
        sender.lines.write(b"a line\n")
        sender.send_some()
    assert len(line.answers) == 1


SECRET, KEY = "hf_0123456789", "-----BEGIN KEY-----\nabcdefghij\n-----END KEY-----"


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"my token is hf_0123456789!\n", "my token is [redacted]!"),
        (b"part 1\nabcdefghij\npart 2\n", "[redacted]"),
        (b"\xff\x00bytes\n", "\ufffdbytes"),
        (b"10 %\r20 %\r30 %\n", "30 %"),
        (b"windows\r\n", "windows"),
        (b"no end", "no end"),
        (b"x" * 100_000 + b"\n", "x" * MAX_LINE_LENGTH),
        (b"a" * (MAX_LINE_LENGTH - 5) + b"hf_0123456789\n", "a" * (MAX_LINE_LENGTH - 5) + "[reda"),
    ],
)
def test_a_line_is_readable_and_holds_no_secret(printed: bytes, shown: str) -> None:
    sender, line = LogSender(ControllerClient(SETTINGS), "w1", 60.0), Line([])
    sender._controller = line  # type: ignore[assignment]
    sender.add_secrets((SECRET, KEY, "short"))
    sender.lines.write(printed)
    sender.lines.end_line()
    sender.send_some()
    assert shown in [each.text for batch in line.heard for each in batch.lines]
