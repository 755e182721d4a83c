"""Client: the controller's REST interface as methods that return views."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from types import TracebackType
from typing import Literal, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from scavenger.client.errors import ServerFault, Unreachable, refusal
from scavenger.view import (
    CheckupView,
    CurveView,
    EventList,
    EventView,
    JobList,
    JobView,
    ProblemView,
    StoredModelList,
    SweepList,
    SweepView,
    View,
)

TIMEOUT = httpx.Timeout(15.0, connect=5.0)
MEDIA = {"yaml": "application/yaml", "json": "application/json"}

AnyView = TypeVar("AnyView", bound=View)
Parameters = Mapping[str, str | int]


class HealthView(View):
    """Whether the controller works: ``status`` is ``ok``."""

    status: str


class Client:
    """Talks to one controller; close it, or use it in a ``with`` statement.

    Every method raises Unreachable when nothing answers, and a kind of Refused when the controller
    says no.
    """

    def __init__(
        self, url: str, token: str, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        """Prepare to talk; nothing is sent yet.

        Args:
            url: Base address, such as ``http://127.0.0.1:8321``.
            token: Bearer token.
            transport: What carries requests; the network if None.
        """
        self.url = url
        try:
            self._http = httpx.Client(
                base_url=url,
                headers={"Authorization": f"Bearer {token}"},
                timeout=TIMEOUT,
                transport=transport,
                # A proxy cannot reach this machine's own loopback address.
                trust_env=not is_loopback(httpx.URL(url).host),
            )
        except httpx.InvalidURL as error:
            raise Unreachable(url, f"this is no address: {error}") from None

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self, document: str, media: Literal["yaml", "json"] = "yaml") -> JobView:
        """Submit a job document; raises Invalid with every problem of it."""
        headers = {"Content-Type": MEDIA[media]}
        content = document.encode()
        return self._ask(JobView, "POST", "/v1/jobs", content=content, headers=headers)

    def job(self, job: str) -> JobView:
        """Return one job."""
        return self._ask(JobView, "GET", job_path(job))

    def jobs(self) -> Iterator[JobView]:
        """Yield every job, newest first, reading page after page."""
        cursor: str | None = None
        while True:
            parameters = {"limit": "100"} | ({"cursor": cursor} if cursor else {})
            page = self._ask(JobList, "GET", "/v1/jobs", parameters=parameters)
            yield from page.jobs
            if page.next_cursor is None or page.next_cursor == cursor:
                return
            cursor = page.next_cursor

    def cancel(self, job: str) -> JobView:
        """Ask for the end of a job; raises Conflict if it has ended already."""
        return self._ask(JobView, "POST", f"{job_path(job)}/actions/cancel")

    def curve(self, job: str) -> CurveView:
        """Return the cost/time curve of a job."""
        return self._ask(CurveView, "GET", f"{job_path(job)}/curve")

    def events(self, job: str, after: int = 0) -> Iterator[EventView]:
        """Yield every event of a job after a sequence number, oldest first."""
        while True:
            parameters = {"after": after, "limit": 200}
            page = self._ask(EventList, "GET", f"{job_path(job)}/events", parameters=parameters)
            yield from page.events
            if not page.events or page.next_after <= after:
                return
            after = page.next_after

    def models(self) -> StoredModelList:
        """Return every stored model, newest first."""
        return self._ask(StoredModelList, "GET", "/v1/models")

    def sweeps(self, limit: int = 50) -> SweepList:
        """Return what the last looks for machines that nobody wants found, newest first."""
        return self._ask(SweepList, "GET", "/v1/sweeps", parameters={"limit": limit})

    def confirm_sweep(self, number: int) -> SweepView:
        """Let what a sweep held back be ended; raises Conflict if it held nothing."""
        content = json.dumps({"confirm": True, "sweep": number}).encode()
        headers = {"Content-Type": MEDIA["json"]}
        return self._ask(SweepView, "POST", "/v1/sweeps", content=content, headers=headers)

    def checkup(self) -> CheckupView:
        """Return what the controller finds out about itself."""
        return self._ask(CheckupView, "GET", "/v1/checkup")

    def health(self) -> HealthView:
        """Return whether the controller works."""
        return self._ask(HealthView, "GET", "/healthz")

    def _ask(
        self,
        view: type[AnyView],
        method: str,
        path: str,
        *,
        parameters: Parameters | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AnyView:
        """Send one request and read the answer as a view."""
        try:
            response = self._http.request(
                method, path, params=parameters, content=content, headers=headers
            )
        except (httpx.TransportError, httpx.DecodingError, httpx.InvalidURL) as error:
            raise Unreachable(self.url, str(error) or type(error).__name__) from error
        if not response.is_success:
            raise refusal(read_problem(response))
        return read_view(view, response)


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine itself.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "10.0.0.1", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def job_path(job: str) -> str:
    """Return the path of a job; a strange id cannot leave it."""
    return f"/v1/jobs/{quote(job, safe='')}"


def read_view(view: type[AnyView], response: httpx.Response) -> AnyView:
    """Read an answer that says the request went well."""
    try:
        return view.model_validate_json(response.content)
    except ValidationError as error:
        detail = f"what came back is no {view.__name__} ({error.error_count()} differences)"
        raise ServerFault(plain_problem(response, "The answer cannot be read", detail)) from None


def read_problem(response: httpx.Response) -> ProblemView:
    """Read an answer that says something went wrong, whoever gave it."""
    try:
        problem = ProblemView.model_validate_json(response.content)
    except ValidationError:
        words = response.reason_phrase or "no reason given"
        title = f"Something that is no controller answered {response.status_code} ({words})"
        return plain_problem(response, title, "")
    return problem.model_copy(update={"status": response.status_code})


def plain_problem(response: httpx.Response, title: str, detail: str) -> ProblemView:
    """Make a problem of an answer that does not describe one."""
    return ProblemView(
        type="about:blank",
        title=title,
        status=response.status_code,
        detail=detail or f"asked {response.request.method} {response.request.url.path}",
        code="unreadable",
        request_id=response.headers.get("x-request-id"),
    )
