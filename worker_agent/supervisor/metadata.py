"""What a cloud tells a machine before it takes it back, asked of the machine's metadata service.

The service is believed to be slow, away or broken at any time. Then it is asked again later, and
nothing else happens: training goes on as on a machine that gets no notice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import httpx
from pydantic_core import from_json

from scavenger.worker_env import MetadataService
from worker_agent.settings import metadata_url

METADATA_TIMEOUT = 3.0
EC2_INTERVAL = 5.0  # as AWS advises
GOOGLE_WAIT, GOOGLE_PAUSE = 60.0, 1.0  # the pause bounds the requests to a service that never waits
RETRY_INTERVAL = 5.0
MAX_ANSWER = 4096

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CloudNotice:
    """A cloud will take this machine back.

    Attributes:
        reason: What it said, in words.
        ends_at: When, by its own clock; None where it did not say.
    """

    reason: str
    ends_at: datetime | None = None


class NoticeSource(Protocol):
    """A metadata service that gives notice.

    Attributes:
        pause: Seconds between two questions.
    """

    @property
    def pause(self) -> float: ...

    def ask(self) -> CloudNotice | None:
        """Return the notice, or None while there is none; may wait for it.

        Raises:
            httpx.HTTPError: The service is away.
            ValueError: It answers nonsense.
        """


def notice_source(service: MetadataService) -> NoticeSource:
    """Return the metadata service of a cloud."""
    url = metadata_url(service)
    match service:
        case "aws":
            return Ec2Notices(url)
        case "google":
            return GoogleNotices(url)


def open_http() -> httpx.Client:
    """Return a client for all questions: to make one costs more processor time than to ask.

    A proxy meant for the web does not know the metadata of this machine, and a connection that the
    service may have closed since the last question is not used again.
    """
    return httpx.Client(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


class NoticeWatcher:
    """Asks on a thread of its own for the notice of this machine, which comes once or never.

    Args:
        source: Whom to ask.
        on_notice: Called on that thread.
        retry: Seconds until a service is asked again that is away.
    """

    def __init__(
        self,
        source: NoticeSource,
        on_notice: Callable[[CloudNotice], None],
        retry: float = RETRY_INTERVAL,
    ) -> None:
        self._source, self._on_notice, self._retry = source, on_notice, retry
        self._is_heard = False
        self._finishing = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def finish(self, timeout: float) -> None:
        """Ask no more, and wait until a notice that was heard has been passed on."""
        self._finishing.set()
        if self._is_heard:
            self._thread.join(timeout)

    def _watch(self) -> None:
        is_answering = True
        while not self._finishing.is_set():
            try:
                notice = self._source.ask()
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                if is_answering:
                    log.warning("the metadata service tells of no notices for now: %s", error)
                is_answering = False
                self._finishing.wait(self._retry)
                continue
            if notice is not None:
                self._is_heard = True
                self._on_notice(notice)
                return
            is_answering = True
            self._finishing.wait(self._source.pause)


@dataclass(slots=True)
class Ec2Notices:
    """Notices of spot instances, by version 2 of the instance metadata service."""

    url: str
    pause: float = EC2_INTERVAL
    _http: httpx.Client = field(default_factory=open_http, init=False, repr=False)

    def ask(self) -> CloudNotice | None:
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = request(self._http, "PUT", f"{self.url}/latest/api/token", lifetime)
        if token.status != httpx.codes.OK:
            raise ValueError(f"EC2 gives no token: {token}")
        headers = {"X-aws-ec2-metadata-token": token.text}
        action = f"{self.url}/latest/meta-data/spot/instance-action"
        told = request(self._http, "GET", action, headers)
        if told.status == httpx.codes.NOT_FOUND:
            return None
        if told.status != httpx.codes.OK:
            raise ValueError(f"EC2 tells no instance action: {told}")
        return parse_instance_action(told.text)


@dataclass(slots=True)
class GoogleNotices:
    """Notices of preemptible machines, for which Google lets a question wait."""

    url: str
    pause: float = GOOGLE_PAUSE
    _http: httpx.Client = field(default_factory=open_http, init=False, repr=False)
    _seen: str = field(default="NONE", init=False)  # the first question is answered at once

    def ask(self) -> CloudNotice | None:
        path = "/computeMetadata/v1/instance/preempted"
        query = f"wait_for_change=true&timeout_sec={GOOGLE_WAIT:.0f}&last_etag={self._seen}"
        headers = {"Metadata-Flavor": "Google"}
        url = f"{self.url}{path}?{query}"
        told = request(self._http, "GET", url, headers, wait=GOOGLE_WAIT)
        if told.status != httpx.codes.OK or told.text not in ("TRUE", "FALSE"):
            raise ValueError(f"Google does not say whether it preempts: {told}")
        self._seen = told.etag if told.etag.isalnum() else "NONE"
        return CloudNotice("Google Cloud preempts it") if told.text == "TRUE" else None


def parse_instance_action(text: str) -> CloudNotice:
    """Return what EC2 will do with an instance; raises ValueError if the text does not say it.

    >>> parse_instance_action('{"action": "stop", "time": "soon"}')
    CloudNotice(reason='EC2 will stop it', ends_at=None)
    """
    told = from_json(text)
    action = told.get("action") if isinstance(told, dict) else None
    if action not in ("terminate", "stop", "hibernate"):
        raise ValueError(f"no action of EC2: {text[:80]!r}")
    # A moment that cannot be read makes the notice no less true.
    with suppress(TypeError, ValueError):
        moment = datetime.fromisoformat(told.get("time"))
        if moment.tzinfo is not None:
            return CloudNotice(f"EC2 will {action} it", moment)
    return CloudNotice(f"EC2 will {action} it")


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """An answer of a metadata service.

    Attributes:
        text: Its beginning.
        etag: Which version of the value it is; empty where that is not told.
    """

    status: int
    text: str
    etag: str = ""

    def __str__(self) -> str:
        return f"status {self.status}, {self.text[:80]!r}"


def request(
    http: httpx.Client, method: str, url: str, headers: Mapping[str, str], *, wait: float = 0.0
) -> MetadataAnswer:
    """Ask once, and read no more than an answer can have; it may come after ``wait`` seconds."""
    timeout = httpx.Timeout(METADATA_TIMEOUT, read=METADATA_TIMEOUT + wait)
    plain = {"Accept-Encoding": "identity", **headers}
    with http.stream(method, url, headers=plain, timeout=timeout) as response:
        content = next(response.iter_raw(MAX_ANSWER), b"")
        text = content.decode("ascii", "replace").strip()
        return MetadataAnswer(response.status_code, text, response.headers.get("etag", ""))
