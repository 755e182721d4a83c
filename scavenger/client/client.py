"""HTTP client of the controller: one method per route, which returns a schema."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import IO, Literal, Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
from pydantic import ValidationError

from scavenger.client.errors import (
    ErrorResponse,
    NotFound,
    ServerFault,
    Unreachable,
    error_for_problem,
)
from scavenger.schemas import (
    CodeView,
    CostReportView,
    CurveView,
    DiagnosticsView,
    EventList,
    EventView,
    HealthView,
    JobList,
    JobView,
    NewTokenView,
    OfferList,
    OfferView,
    PriceImportView,
    PriceList,
    PriceRow,
    ProblemView,
    StoredModelList,
    SweepList,
    SweepView,
    TokenList,
    TokenView,
    UserRole,
    View,
)

CLIENT_TIMEOUT = httpx.Timeout(15.0, connect=5.0)
# A controller writes an archive into its database before it answers.
UPLOAD_ANSWER_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
UPLOAD_PART = 1 << 18
REQUEST_ATTEMPTS = 3
MAX_PAGE_SIZE = 200  # the largest that the controller allows
MAX_IMPORTED_ROWS = 1000  # of one request; the controller allows twice as many
# Errors before the first byte left: the controller cannot have acted, and a repetition fails alike.
NOT_SENT_ERRORS = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
)
# The first attempt is still at work, or its commit was lost with the database: the same request
# with the same idempotency key gets the answer that the first one would have had.
RETRYABLE_CODES = ("idempotency_in_progress", "database_unavailable")
DOCUMENT_MEDIA_TYPES = {"yaml": "application/yaml", "json": "application/json"}

ViewT = TypeVar("ViewT", bound=View)
PageT = TypeVar("PageT", JobList, EventList, StoredModelList, PriceList, CostReportView)
QueryParameters = Mapping[str, str | int]


class Client:
    """Client of one controller; close it, or use it in a ``with`` statement.

    Every method raises Unreachable where no controller answers, and a kind of ErrorResponse where
    it answers with a problem.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        transport: httpx.BaseTransport | None = None,
        pause: float = 1.0,
    ) -> None:
        """Open a client; the first method sends the first request.

        Args:
            url: Base address, such as ``http://127.0.0.1:8321``.
            token: Bearer token.
            transport: Transport of httpx; the network if None.
            pause: Seconds before a request whose answer was lost is sent again.
        """
        self.url, self.pause = url, pause
        try:
            self._http = httpx.Client(
                base_url=url,
                headers={"Authorization": f"Bearer {token}"},
                timeout=CLIENT_TIMEOUT,
                transport=transport,
                # A proxy cannot reach this machine's own loopback address.
                trust_env=not is_loopback(httpx.URL(url).host),
            )
        except httpx.InvalidURL as error:
            raise Unreachable(url, f"this is no address: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self, document: str, media: Literal["yaml", "json"] = "yaml") -> JobView:
        """Submit a job document; raises InvalidRequest with all its problems."""
        return self._post(JobView, "/v1/jobs", document.encode(), media)

    def has_code(self, digest: str) -> bool:
        """Tell whether the project has the code of a SHA-256."""
        try:
            self._request(CodeView, "GET", f"/v1/code/{digest}")
        except NotFound:
            return False
        return True

    def upload_code(self, digest: str, file: IO[bytes], size: int) -> CodeView:
        """Send an archive of code; a job can then name it as ``run.code``.

        Args:
            digest: SHA-256 of the archive.
            file: The archive.
            size: Its bytes.
        """
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}

        def send() -> CodeView:
            file.seek(0)
            parts = iter(lambda: file.read(UPLOAD_PART), b"")
            path = f"/v1/code/{digest}"
            return self._request(
                CodeView, "PUT", path, content=parts, headers=headers, timeout=UPLOAD_ANSWER_TIMEOUT
            )

        return self._repeat(send)  # storing the same bytes again changes nothing

    def get_job(self, job: str) -> JobView:
        """Return one job."""
        return self._request(JobView, "GET", job_path(job))

    def find_jobs(self, wanted: str) -> Iterator[JobView]:
        """Yield jobs whose id begins or ends with a text, or whose name begins with it.

        A page is requested only when the iteration reaches it; usually one page holds all.
        """
        for page in self._iterate_pages(JobList, "/v1/jobs", {"q": wanted, "limit": MAX_PAGE_SIZE}):
            yield from page.jobs

    def list_jobs(self, limit: int) -> JobList:
        """Return up to ``limit`` of the newest jobs, and the cursor of the others."""
        found: list[JobView] = []
        parameters: dict[str, str | int] = {}
        while True:
            parameters["limit"] = min(limit - len(found), MAX_PAGE_SIZE)
            page = self._request(JobList, "GET", "/v1/jobs", parameters=parameters)
            found += page.jobs
            if page.next_cursor is None or not page.jobs or len(found) >= limit:
                return JobList(jobs=found, next_cursor=page.next_cursor)
            parameters["cursor"] = page.next_cursor

    def cancel(self, job: str) -> JobView:
        """Cancel a job; raises Conflict if it has ended already."""
        return self._post(JobView, f"{job_path(job)}/actions/cancel")

    def get_curve(self, job: str) -> CurveView:
        """Return the cost/time curve of a job."""
        return self._request(CurveView, "GET", f"{job_path(job)}/curve")

    def list_events(self, job: str, after: int = 0) -> Iterator[EventView]:
        """Yield every event of a job after a sequence number, oldest first."""
        path = f"{job_path(job)}/events"
        for page in self._iterate_pages(EventList, path, {"after": after, "limit": MAX_PAGE_SIZE}):
            yield from page.events

    def list_models(self) -> StoredModelList:
        """Return every stored model, newest first."""
        pages = self._iterate_pages(StoredModelList, "/v1/models", {"limit": MAX_PAGE_SIZE})
        return StoredModelList(models=[model for page in pages for model in page.models])

    def list_prices(self) -> PriceList:
        """Return every price that the controller plans with."""
        pages = self._iterate_pages(PriceList, "/v1/prices", {"limit": MAX_PAGE_SIZE})
        return PriceList(prices=[price for page in pages for price in page.prices])

    def import_prices(self, rows: Sequence[PriceRow]) -> PriceImportView:
        """Import rows of a price table; the answer says which prices are not believed."""
        accepted, refused = 0, list[str]()
        for start in range(0, len(rows), MAX_IMPORTED_ROWS):
            some = rows[start : start + MAX_IMPORTED_ROWS]
            content = json.dumps({"prices": [row.model_dump(mode="json") for row in some]})
            answer = self._post(PriceImportView, "/v1/prices", content.encode())
            accepted += answer.accepted
            refused += answer.refused
        return PriceImportView(accepted=accepted, refused=refused)

    def list_offers(self, limit: int, wanted: QueryParameters) -> OfferList:
        """Return up to ``limit`` of the cheapest offers, and the cursor of the others."""
        found: list[OfferView] = []
        parameters: dict[str, str | int] = dict(wanted)
        while True:
            parameters["limit"] = min(limit - len(found), MAX_PAGE_SIZE)
            page = self._request(OfferList, "GET", "/v1/offers", parameters=parameters)
            found += page.offers
            if page.next_cursor is None or not page.offers or len(found) >= limit:
                return OfferList(offers=found, next_cursor=page.next_cursor)
            parameters["cursor"] = page.next_cursor

    def get_cost(self, by: str) -> CostReportView:
        """Return what the machines of the project cost, every entry of it."""
        parameters: dict[str, str | int] = {"by": by, "limit": MAX_PAGE_SIZE}
        first, *others = self._iterate_pages(CostReportView, "/v1/cost", parameters)
        entries = [entry for page in (first, *others) for entry in page.entries]
        return first.model_copy(update={"entries": entries, "next_cursor": None})

    def list_sweeps(self, limit: int = 50) -> SweepList:
        """Return sweeps for orphaned machines, newest first."""
        return self._request(SweepList, "GET", "/v1/sweeps", parameters={"limit": limit})

    def confirm_sweep(self, number: int) -> SweepView:
        """Confirm that machines held back are terminated; raises Conflict if none are."""
        content = json.dumps({"confirm": True, "sweep": number}).encode()
        return self._post(SweepView, "/v1/sweeps", content)

    def create_token(
        self, name: str, role: UserRole, project: str | None, lifetime: float | None
    ) -> NewTokenView:
        """Create a token that lasts ``lifetime`` seconds; only this answer has its secret."""
        wish = {"name": name, "role": role, "project": project, "lifetime": lifetime}
        content = json.dumps(wish).encode()
        headers = {"Content-Type": DOCUMENT_MEDIA_TYPES["json"]}
        return self._request(NewTokenView, "POST", "/v1/tokens", content=content, headers=headers)

    def list_tokens(self) -> TokenList:
        """Return the tokens of the project, newest first."""
        return self._request(TokenList, "GET", "/v1/tokens")

    def revoke_token(self, token: str) -> TokenView:
        """Revoke a token by its id."""
        return self._request(
            TokenView, "POST", f"/v1/tokens/{quote(token, safe='')}/actions/revoke"
        )

    def get_diagnostics(self) -> DiagnosticsView:
        """Return the controller's checks of itself."""
        return self._request(DiagnosticsView, "GET", "/v1/checkup")

    def get_health(self) -> HealthView:
        """Return whether the controller works."""
        return self._request(HealthView, "GET", "/healthz")

    def _post(
        self,
        view: type[ViewT],
        path: str,
        content: bytes = b"",
        media: Literal["yaml", "json"] = "json",
    ) -> ViewT:
        """Send a request that changes something, and repeat it if its answer is lost.

        The idempotency key lets the controller recognize a repetition, so it acts once.
        """
        headers = {"Content-Type": DOCUMENT_MEDIA_TYPES[media], "Idempotency-Key": str(uuid4())}
        return self._repeat(
            lambda: self._request(view, "POST", path, content=content, headers=headers)
        )

    def _repeat(self, send: Callable[[], ViewT]) -> ViewT:
        """Send a request, and send it again where its answer is lost."""
        for _ in range(REQUEST_ATTEMPTS - 1):
            try:
                return send()
            except (Unreachable, ErrorResponse) as error:
                if not should_retry(error):
                    raise
            time.sleep(self.pause)
        return send()

    def _iterate_pages(
        self, view: type[PageT], path: str, parameters: dict[str, str | int]
    ) -> Iterator[PageT]:
        """Yield a list page after page."""
        while True:
            page = self._request(view, "GET", path, parameters=parameters)
            yield page
            # A cursor that repeats would make this loop endless.
            if page.next_cursor in (None, parameters.get("cursor")):
                return
            parameters = {**parameters, "cursor": page.next_cursor}

    def _request(
        self,
        view: type[ViewT],
        method: str,
        path: str,
        *,
        parameters: QueryParameters | None = None,
        content: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout = CLIENT_TIMEOUT,
    ) -> ViewT:
        """Send one request and parse the answer."""
        try:
            response = self._http.request(
                method, path, params=parameters, content=content, headers=headers, timeout=timeout
            )
        except (httpx.TransportError, httpx.DecodingError, httpx.InvalidURL) as error:
            raise Unreachable(self.url, str(error) or type(error).__name__) from error
        if not response.is_success:
            raise error_for_problem(parse_problem(response), path)
        return parse_view(view, response)


def is_loopback(host: str) -> bool:
    """Tell whether a host is this computer itself.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "10.0.0.1", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def should_retry(error: Unreachable | ErrorResponse) -> bool:
    """Tell whether the controller may have carried out a failed request, so that it is repeated."""
    if isinstance(error, ErrorResponse):
        return error.problem.code in RETRYABLE_CODES
    return not isinstance(error.__cause__, NOT_SENT_ERRORS)


def job_path(job: str) -> str:
    """Return the path of a job; an id with slashes cannot lead elsewhere."""
    return f"/v1/jobs/{quote(job, safe='')}"


def parse_view(view: type[ViewT], response: httpx.Response) -> ViewT:
    """Parse a successful answer."""
    try:
        return view.model_validate_json(response.content)
    except ValidationError as error:
        detail = f"the answer is no {view.__name__} ({error.error_count()} differences)"
        problem = generic_problem(response, "The answer cannot be read", detail)
        raise ServerFault(problem, response.request.url.path) from None


def parse_problem(response: httpx.Response) -> ProblemView:
    """Parse an error answer, also one of a proxy in between, which describes no problem."""
    try:
        problem = ProblemView.model_validate_json(response.content)
    except ValidationError:
        words = response.reason_phrase or "no reason given"
        title = f"The server answered {response.status_code} ({words}) and is not a controller"
        return generic_problem(response, title, "")
    return problem.model_copy(update={"status": response.status_code})


def generic_problem(response: httpx.Response, title: str, detail: str) -> ProblemView:
    """Return a problem for an answer that does not describe one."""
    return ProblemView(
        type="about:blank",
        title=title,
        status=response.status_code,
        detail=detail or f"asked {response.request.method} {response.request.url.path}",
        code="unreadable",
        request_id=response.headers.get("x-request-id"),
    )
