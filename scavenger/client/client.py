"""``Client`` and ``AsyncClient``: one method per route, described once for both.

A method returns a schema of ``scavenger.schemas`` or yields them; those of ``AsyncClient`` are
awaited, and iterated with ``async for``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO
from urllib.parse import quote

from scavenger.client.core import (
    JOB_LOOK_INTERVAL,
    MAX_PAGE_SIZE,
    ApiRequest,
    Conversation,
    Listing,
    QueryParameters,
    Sleep,
    get,
    iterate_items,
    job_path,
    next_page,
    post,
    read_items,
    send,
    send_patiently,
)
from scavenger.client.documents import DocumentFormat, read_document
from scavenger.client.drivers import AwaitingDriver, BlockingDriver
from scavenger.client.errors import NotFound, StillRunning, error_of_job
from scavenger.client.methods import conversation, listing, one_request
from scavenger.client.notebook import ShownCurve, ShownPlan
from scavenger.client.orders import OrderMethods
from scavenger.client.readings import ReadingMethods
from scavenger.client.streams import (
    News,
    follow_job_events,
    follow_news,
    list_job_events,
    listen_once,
)
from scavenger.client.webhooks import WebhookMethods
from scavenger.schemas.access import NewTokenView, SignInCodeView, TokenList, TokenView, UserRole
from scavenger.schemas.curves import DecisionList, DecisionView, WantedBasis
from scavenger.schemas.diagnostics import DiagnosticsView, HealthView
from scavenger.schemas.events import EventView
from scavenger.schemas.jobs import CodeView, JobList, JobView
from scavenger.schemas.machines import SweepList, SweepView
from scavenger.schemas.models import StoredModelList, StoredModelView
from scavenger.schemas.prices import (
    CostReportView,
    OfferList,
    PriceImportView,
    PriceList,
    PriceRow,
    PriceView,
)
from scavenger.schemas.telemetry import TelemetryView

# A controller writes an archive into its database before it answers.
UPLOAD_ANSWER_TIMEOUT = 60.0
UPLOAD_PART = 1 << 18
MAX_IMPORTED_ROWS = 1000  # of one request; the controller allows twice as many


class ControllerMethods(OrderMethods, WebhookMethods, ReadingMethods):
    """The methods of both clients.

    Every method raises Unreachable where no controller answers, and a kind of ErrorResponse where
    it answers with a problem.
    """

    @one_request
    def submit(self, document: str | Path, media: DocumentFormat = "yaml") -> ApiRequest[JobView]:
        """Submit a job document.

        Args:
            document: Its text, or a file; the command of a file runs in the folder of the file.
            media: The format of a text; a file's suffix tells its own.

        Raises:
            Validation: The controller refuses it, with all its problems.
            InvalidDocument: The file has problems, each with its line and column.
        """
        text, written_in = read_document(document, media)
        return post(JobView, "/v1/jobs", text, media=written_in)

    @conversation
    def has_code(self, digest: str) -> Conversation[bool]:
        """Tell whether the project has the code of a SHA-256."""
        try:
            yield from send(get(CodeView, f"/v1/code/{digest}"))
        except NotFound:
            return False
        return True

    @one_request
    def upload_code(self, digest: str, file: IO[bytes], size: int) -> ApiRequest[CodeView]:
        """Send an archive of code; a job can then name it as ``run.code``.

        Args:
            digest: SHA-256 of the archive.
            file: The archive.
            size: Its bytes.
        """

        def parts() -> Iterator[bytes]:
            file.seek(0)
            return iter(lambda: file.read(UPLOAD_PART), b"")

        return ApiRequest(
            CodeView,
            "PUT",
            f"/v1/code/{digest}",
            content=parts,
            headers={"Content-Type": "application/octet-stream", "Content-Length": str(size)},
            timeout=UPLOAD_ANSWER_TIMEOUT,
        )

    @one_request
    def get_job(self, job: str) -> ApiRequest[JobView]:
        """Return one job."""
        return get(JobView, job_path(job))

    @listing
    def jobs(self, q: str | None = None) -> Listing[JobView]:
        """Yield jobs, newest first; a page is requested only when the iteration reaches it.

        Args:
            q: Only jobs whose id begins or ends with it, or whose name begins with it.
        """
        wanted = {} if q is None else {"q": q}
        request = get(JobList, "/v1/jobs", {**wanted, "limit": MAX_PAGE_SIZE})
        return iterate_items(request, lambda page: page.jobs)

    @conversation
    def list_jobs(self, limit: int, wanted: QueryParameters | None = None) -> Conversation[JobList]:
        """Return up to ``limit`` of the newest jobs, and the cursor of the others.

        Args:
            limit: The most to return.
            wanted: Filters: ``phase``, ``model``, ``project``, ``since`` and ``q``.
        """
        request = get(JobList, "/v1/jobs", wanted or {})
        found, cursor = yield from read_items(request, lambda page: page.jobs, limit)
        return JobList(jobs=found, next_cursor=cursor)

    @one_request
    def cancel(self, job: str) -> ApiRequest[JobView]:
        """Cancel a job; raises ConflictState if it has ended already."""
        return post(JobView, f"{job_path(job)}/actions/cancel")

    @conversation
    def wait(self, job: str, timeout: float | None = None) -> Conversation[JobView]:
        """Wait until a job reached its target, and return it.

        A controller that restarts meanwhile is waited for.

        Args:
            job: Id of the job.
            timeout: Seconds to wait at most; None waits until the job ends.

        Raises:
            JobEnded: It ended otherwise; the class says how.
            StillRunning: It goes on after the timeout.
        """
        begin = time.monotonic()
        request = get(JobView, job_path(job))
        found = yield from send(request)
        while not found.phase.is_final:
            if timeout is not None and time.monotonic() - begin >= timeout:
                raise StillRunning(found, timeout)
            yield Sleep(JOB_LOOK_INTERVAL)
            found = yield from send_patiently(request)
        error = error_of_job(found)
        if error is not None:
            raise error
        return found

    @one_request
    def plan(self, document: str | Path, media: DocumentFormat = "yaml") -> ApiRequest[ShownPlan]:
        """Return what would become of a job document; nothing is launched or spent.

        A notebook shows the plan with its curve. Takes and raises what ``submit`` does.
        """
        text, written_in = read_document(document, media)
        return post(ShownPlan, "/v1/plans", text, media=written_in)

    @one_request
    def get_plan(self, plan: str) -> ApiRequest[ShownPlan]:
        """Return a plan that was made before."""
        return get(ShownPlan, f"/v1/plans/{quote(plan, safe='')}")

    @one_request
    def submit_plan(self, plan: str) -> ApiRequest[JobView]:
        """Submit exactly what was planned; once, so that a repetition returns the same job.

        Raises:
            PlanExpired: Plan the document again.
        """
        return post(JobView, "/v1/jobs", {"plan": plan})

    @one_request
    def curve(
        self, job: str, decision: int | None = None, basis: WantedBasis = "auto"
    ) -> ApiRequest[ShownCurve]:
        """Return the cost/time curve of a job, which a notebook shows as a picture.

        Args:
            job: Id of the job.
            decision: Number of the choice whose curve is wanted; the last one if None.
            basis: What is counted: what is left while the job runs and else the total, if ``auto``.
        """
        which: QueryParameters = {} if decision is None else {"decision": decision}
        counted: QueryParameters = {} if basis == "auto" else {"basis": basis}
        return get(ShownCurve, f"{job_path(job)}/curve", {**which, **counted})

    @listing
    def decisions(self, job: str) -> Listing[DecisionView]:
        """Yield the choices of a job whose curves are kept, oldest first."""
        request = get(DecisionList, f"{job_path(job)}/decisions", {"limit": MAX_PAGE_SIZE})
        return iterate_items(request, lambda page: page.decisions)

    @one_request
    def what_if(
        self,
        job: str,
        *,
        price: str | None = None,
        workers: Sequence[int] | str | None = None,
        limits: Mapping[str, str | Sequence[int] | None] | None = None,
        objective: str | Mapping[str, float] | None = None,
    ) -> ApiRequest[ShownCurve]:
        """Return the curve that a job would have with another price, workers, limits or objective.

        Nothing is stored, and the job goes on as it is.

        Args:
            job: Id of the job.
            price: Such as ``0.5 USD/h``.
            workers: Worker counts, or a range such as ``1..8``.
            limits: ``max_cost``, ``max_time`` and ``batch``; None removes a limit.
            objective: Such as ``cheapest``, or ``{"time_weight": 0.7}``.
        """
        asked = {"price": price, "workers": workers, "limits": limits, "objective": objective}
        question = {name: value for name, value in asked.items() if value is not None}
        return post(ShownCurve, f"{job_path(job)}/curve/whatif", question)

    @one_request
    def telemetry(
        self, job: str, series: Sequence[str], points: int = 2000
    ) -> ApiRequest[TelemetryView]:
        """Return measured series of a job, each in so many buckets at most."""
        wanted: QueryParameters = {"series": ",".join(series), "points": points}
        return get(TelemetryView, f"{job_path(job)}/telemetry", wanted)

    @listing
    def events(self, job: str, after: int = 0, *, follow: bool = False) -> Listing[EventView]:
        """Yield the events of a job, oldest first.

        Args:
            job: Id of the job.
            after: Only events with a greater sequence number.
            follow: Whether to yield further events as they happen, until the job has ended.
        """
        if follow:
            return follow_job_events(job, after)
        return list_job_events(f"{job_path(job)}/events", after)

    @listing
    def follow(self, job: str | None = None, after: int | None = None) -> Listing[News]:
        """Yield what happens to jobs, without an end: events, and what changed about a job.

        Args:
            job: Only of this job.
            after: Begin with the event after this number; None begins now.
        """
        return follow_news({} if job is None else {"job": job}, after)

    @listing
    def listen(self, job: str, after: int) -> Listing[News | None]:
        """Yield what a job's stream says after an event, until the controller ends the stream.

        ``follow`` connects again by itself; this raises Unreachable where the connection breaks.
        The first item is None, and so is one where nothing happened for a while: what changes
        after it is said, so that a look at the job there misses nothing.
        """
        return listen_once(job, after)

    @listing
    def models(self, project: str | None = None) -> Listing[StoredModelView]:
        """Yield stored models, of one project or of all that the token sees, newest first."""
        wanted = {} if project is None else {"project": project}
        request = get(StoredModelList, "/v1/models", {"limit": MAX_PAGE_SIZE, **wanted})
        return iterate_items(request, lambda page: page.models)

    @listing
    def prices(self) -> Listing[PriceView]:
        """Yield every price that the controller plans with."""
        request = get(PriceList, "/v1/prices", {"limit": MAX_PAGE_SIZE})
        return iterate_items(request, lambda page: page.prices)

    @conversation
    def import_prices(self, rows: Sequence[PriceRow]) -> Conversation[PriceImportView]:
        """Import rows of a price table; the answer says which prices are not believed."""
        accepted, refused = 0, list[str]()
        for start in range(0, len(rows), MAX_IMPORTED_ROWS):
            some = rows[start : start + MAX_IMPORTED_ROWS]
            document = {"prices": [row.model_dump(mode="json") for row in some]}
            answer = yield from send(post(PriceImportView, "/v1/prices", document))
            accepted += answer.accepted
            refused += answer.refused
        return PriceImportView(accepted=accepted, refused=refused)

    @conversation
    def list_offers(self, limit: int, wanted: QueryParameters) -> Conversation[OfferList]:
        """Return up to ``limit`` of the cheapest offers, and the cursor of the others."""
        request = get(OfferList, "/v1/offers", wanted)
        found, cursor = yield from read_items(request, lambda page: page.offers, limit)
        return OfferList(offers=found, next_cursor=cursor)

    @conversation
    def get_cost(
        self, by: str, since: datetime | None = None, project: str | None = None
    ) -> Conversation[CostReportView]:
        """Return what the machines of the project cost, every entry of it.

        Args:
            by: What an entry is: ``job``, ``model``, ``project``, ``cloud`` or ``day``.
            since: Only what was spent from this moment on; None for all.
            project: Only of this project; None for all that the token sees.
        """
        begin = {} if since is None else {"since": since.isoformat()}
        wanted = begin if project is None else {**begin, "project": project}
        request = get(CostReportView, "/v1/cost", {"by": by, "limit": MAX_PAGE_SIZE, **wanted})
        first = page = yield from send(request)
        entries = list(first.entries)
        while following := next_page(request, page):
            page = yield from send(following)
            entries += page.entries
            request = following
        return first.model_copy(update={"entries": entries, "next_cursor": None})

    @one_request
    def list_sweeps(self, limit: int = 50) -> ApiRequest[SweepList]:
        """Return sweeps for orphaned machines, newest first."""
        return get(SweepList, "/v1/sweeps", {"limit": limit})

    @one_request
    def confirm_sweep(self, number: int) -> ApiRequest[SweepView]:
        """Confirm that machines held back are terminated; raises NothingHeld if none are."""
        return post(SweepView, "/v1/sweeps", {"confirm": True, "sweep": number})

    @one_request
    def buy_sign_in_code(self) -> ApiRequest[SignInCodeView]:
        """Return a code that signs a browser in with this client's token, once within a minute."""
        return post(SignInCodeView, "/v1/session/codes")

    @one_request
    def create_token(
        self,
        name: str,
        role: UserRole,
        project: str | None = None,
        lifetime: float | None = None,
    ) -> ApiRequest[NewTokenView]:
        """Create a token that lasts ``lifetime`` seconds; only this answer has its secret."""
        wish = {"name": name, "role": role, "project": project, "lifetime": lifetime}
        return post(NewTokenView, "/v1/tokens", wish)

    @one_request
    def list_tokens(self) -> ApiRequest[TokenList]:
        """Return the tokens of the project, newest first."""
        return get(TokenList, "/v1/tokens")

    @one_request
    def revoke_token(self, token: str) -> ApiRequest[TokenView]:
        """Revoke a token by its id."""
        return post(TokenView, f"/v1/tokens/{quote(token, safe='')}/actions/revoke")

    @one_request
    def get_diagnostics(self) -> ApiRequest[DiagnosticsView]:
        """Return the controller's checks of itself."""
        return get(DiagnosticsView, "/v1/checkup")

    @one_request
    def get_health(self) -> ApiRequest[HealthView]:
        """Return whether the controller works."""
        return get(HealthView, "/healthz")


class Client(ControllerMethods, BlockingDriver):
    """Client of one controller; close it, or use it in a ``with`` statement."""


class AsyncClient(ControllerMethods, AwaitingDriver):
    """``Client`` for an event loop; close it, or use it in an ``async with`` statement."""
