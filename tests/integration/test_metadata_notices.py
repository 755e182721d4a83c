"""A machine hears from its metadata service that it is taken back; other answers do no harm."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from tests.controller_double import until
from tests.fakecloud.http_server import Answer, HttpRequest, HttpServer
from tests.fakecloud.refusal import ConnectionLost
from tests.integration.test_supervisor import Machine, controller, machine  # noqa: F401
from tests.machines.metadata import Kind, Metadata
from worker_agent.supervisor.metadata import (
    CloudNotice,
    Ec2Notices,
    GoogleNotices,
    NoticeWatcher,
    parse_instance_action,
)

ENDS_AT = datetime(2026, 1, 1, 12, 2, tzinfo=UTC)
HEARD = {
    "aws": CloudNotice("EC2 will terminate it", ENDS_AT),
    "google": CloudNotice("Google Cloud preempts it"),
}
SOURCES = {"aws": Ec2Notices, "google": GoogleNotices}
TRAINS = """
beats, Phase = opened()
signal.signal(signal.SIGTERM, lambda *_: (print("leaves", flush=True), sys.exit(0)))
open("training", "w").close()
time.sleep(600)
"""


class Service:
    """The metadata service of one machine, which may be broken first.

    Attributes:
        odd: What it answers instead, until there is nothing left of it.
        asked: Paths it was asked for.
    """

    def __init__(self, kind: Kind) -> None:
        self.notice: datetime | None = None
        self.odd: list[Callable[[], Answer]] = []
        self.asked: list[str] = []
        self._metadata = Metadata(kind, "i-1", "127.0.0.1", lambda: self.notice)

    def answer(self, request: HttpRequest) -> Answer:
        self.asked.append(request.target)
        return self.odd.pop()() if self.odd else self._metadata.answer(request)

    def variables(self, url: str) -> dict[str, str]:
        return self._metadata.variables(url)


@pytest.fixture(params=["aws", "google"])
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def service(kind: Kind) -> Service:
    return Service(kind)


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    with HttpServer(service.answer) as server:
        yield server.url


def lose() -> Answer:
    raise ConnectionLost


ODD: dict[str, Callable[[], Answer]] = {
    "breaks the connection": lose,
    "is broken": lambda: (500, "text/html", b"<html>"),
    "sends a page of a portal": lambda: (200, "text/html", b"<html>sign in</html>"),
    "says nothing": lambda: (200, "text/plain", b""),
    "says too much": lambda: (200, "text/plain", b"TRUE" * 100_000),
    "says what is no text": lambda: (200, "text/plain", b"\xff\x00\n"),
    "claims to be packed": lambda: (200, "text/plain", b"no gzip", {"Content-Encoding": "gzip"}),
    "sends elsewhere": lambda: (302, "text/plain", b"", {"Location": "http://127.0.0.1:1/"}),
    "answers JSON of no sense": lambda: (200, "application/json", b'{"action": ["terminate"]}'),
    "nests without end": lambda: (200, "application/json", b"[" * 4096),
    "has an odd version": lambda: (200, "text/plain", b"FALSE", {"ETag": "a&b \xe9"}),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_service_that_answers_nonsense_is_asked_again(
    service: Service, url: str, kind: Kind, odd: Callable[[], Answer]
) -> None:
    service.notice, service.odd = ENDS_AT, [odd, odd]
    heard: list[CloudNotice] = []
    watcher = NoticeWatcher(SOURCES[kind](url), heard.append, retry=0.0)
    watcher.start()
    until(lambda: heard)
    watcher.finish(60.0)
    assert heard == [HEARD[kind]]
    assert not service.odd


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[", "nonsense", "http://a b/"])
def test_a_service_at_no_address_is_asked_again_too(kind: Kind, url: str) -> None:
    source, asked, threads = SOURCES[kind](url), threading.Semaphore(0), threading.active_count()

    class Counted:
        pause = 0.0

        def ask(self) -> CloudNotice | None:
            asked.release()
            return source.ask()

    watcher = NoticeWatcher(Counted(), lambda _: None, retry=0.0)
    watcher.start()
    for _ in range(3):
        assert asked.acquire(timeout=60)
    watcher.finish(0.0)
    until(lambda: threading.active_count() == threads)


@pytest.mark.parametrize(
    ("text", "ends_at"),
    [
        ('{"action": "terminate", "time": "2026-01-01T12:02:00Z"}', ENDS_AT),
        ('{"action": "terminate", "time": "2026-01-01T12:02:00"}', None),
        ('{"action": "terminate", "time": 7}', None),
        ('{"action": "terminate"}', None),
    ],
)
def test_a_notice_counts_though_its_moment_cannot_be_read(
    text: str, ends_at: datetime | None
) -> None:
    assert parse_instance_action(text) == CloudNotice("EC2 will terminate it", ends_at)


def test_a_notice_lets_the_worker_leave_and_the_controller_hear_of_it(
    machine: Machine,  # noqa: F811
    service: Service,
    url: str,
    kind: Kind,
) -> None:
    machine.start(TRAINS, SCAVENGER_METADATA=kind, **service.variables(url))
    until((machine.directory / "training").exists)
    service.notice = ENDS_AT
    ending = machine.ending()
    (notice,) = machine.controller.notices
    assert (notice.worker, notice.reason, notice.ends_at) == (
        "w1",
        HEARD[kind].reason,
        HEARD[kind].ends_at,
    )
    assert "leaves" in ending.tail
    assert ending.cause.startswith("the machine was told to end; the command ended")
    assert not machine.controller.restarts


@pytest.mark.parametrize("kind", ["google"], indirect=True)
def test_sigterm_after_a_notice_does_not_cut_the_farewell_short(
    machine: Machine,  # noqa: F811
    service: Service,
    url: str,
    kind: Kind,
) -> None:
    held = TRAINS.replace(
        'print("leaves", flush=True)',
        'open("leaving", "w").close(), [time.sleep(0.01) for _ in iter('
        'lambda: os.path.exists("told"), True)], print("leaves", flush=True)',
    )
    machine.start(held, SCAVENGER_METADATA=kind, **service.variables(url))
    until((machine.directory / "training").exists)
    service.notice = ENDS_AT
    until((machine.directory / "leaving").exists)
    os.kill(machine.pid, signal.SIGTERM)
    (machine.directory / "told").touch()
    assert "leaves" in machine.ending().tail


def test_a_notice_before_the_command_runs_is_told_as_well(
    machine: Machine,  # noqa: F811
    service: Service,
    url: str,
    kind: Kind,
) -> None:
    service.notice = ENDS_AT
    machine.controller.assign(setup=("sleep", "600"))
    machine.start(TRAINS, SCAVENGER_METADATA=kind, **service.variables(url))
    until(machine.ended)
    assert [notice.reason for notice in machine.controller.notices] == [HEARD[kind].reason]
    assert not (machine.directory / "training").exists()


def test_a_machine_of_no_cloud_asks_no_metadata_service(
    machine: Machine,  # noqa: F811
    service: Service,
    url: str,
) -> None:
    service.notice = ENDS_AT
    machine.start("sys.exit(0)", **service.variables(url))
    assert machine.ending().code == 0
    assert service.asked == []
