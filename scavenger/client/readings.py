"""Methods of both clients that read machines, series, logs and models."""

from __future__ import annotations

from urllib.parse import quote

from scavenger.client.core import (
    MAX_PAGE_SIZE,
    ApiRequest,
    Conversation,
    Listing,
    QueryParameters,
    get,
    iterate_items,
    job_path,
    next_page,
    post,
    read_items,
    send,
)
from scavenger.client.methods import conversation, listing, one_request
from scavenger.client.streams import follow_lines
from scavenger.schemas.diagnostics import VersionView
from scavenger.schemas.machines import MachineList, MachineView
from scavenger.schemas.models import ForgottenModelView, ModelDetailView
from scavenger.schemas.telemetry import LogLineView, LogList


class ReadingMethods:
    """What users read beside jobs."""

    @listing
    def machines(self, job: str | None = None, state: str | None = None) -> Listing[MachineView]:
        """Yield machines, newest first.

        Args:
            job: Only of this job.
            state: Only in these states, separated by commas, such as ``launched,ending``.
        """
        given = {"job": job, "state": state, "limit": MAX_PAGE_SIZE}
        wanted = {name: value for name, value in given.items() if value is not None}
        request = get(MachineList, "/v1/machines", wanted)
        return iterate_items(request, lambda page: page.machines)

    @conversation
    def list_machines(self, limit: int, wanted: QueryParameters) -> Conversation[MachineList]:
        """Return up to ``limit`` of the newest machines, and the cursor of the others.

        Args:
            limit: The most to return.
            wanted: Filters: ``job`` and ``state``.
        """
        request = get(MachineList, "/v1/machines", wanted)
        found, cursor = yield from read_items(request, lambda page: page.machines, limit)
        return MachineList(machines=found, next_cursor=cursor)

    @conversation
    def list_log(
        self, job: str, machine: str | None = None, tail: int = 200
    ) -> Conversation[LogList]:
        """Return the lines that the commands of a job printed last, oldest first."""
        request, lines = log_request(job, machine, tail), list[LogLineView]()
        page = yield from send(request)
        lines += page.lines
        while following := next_page(request, page):
            request = following
            page = yield from send(request)
            lines += page.lines
        return LogList(lines=lines, dropped=page.dropped)

    @listing
    def logs(
        self, job: str, machine: str | None = None, tail: int = 200, *, follow: bool = False
    ) -> Listing[LogLineView]:
        """Yield the lines that the commands of a job printed, oldest first.

        Args:
            job: Id of the job.
            machine: Only of this machine.
            tail: Begin with so many of the newest lines.
            follow: Whether to yield further lines as they come, until the job has ended.
        """
        if follow:
            wanted = log_parameters(machine, tail)
            return follow_lines(f"{job_path(job)}/logs", wanted)
        return iterate_items(log_request(job, machine, tail), lambda page: page.lines)

    @one_request
    def model(self, signature: str) -> ApiRequest[ModelDetailView]:
        """Return a stored model, with the forecasts of its jobs and what came of them."""
        return get(ModelDetailView, model_path(signature))

    @one_request
    def forget_model(self, signature: str) -> ApiRequest[ForgottenModelView]:
        """Forget a stored model: the next job of its signature searches anew."""
        return post(ForgottenModelView, f"{model_path(signature)}/actions/forget")

    @one_request
    def get_version(self) -> ApiRequest[VersionView]:
        """Return which controller answers."""
        return get(VersionView, "/v1/version")


def model_path(signature: str) -> str:
    """Return the path of a model; its signature has slashes of its own."""
    return f"/v1/models/{quote(signature, safe='')}"


def log_request(job: str, machine: str | None, tail: int) -> ApiRequest[LogList]:
    """Return the request for the newest lines."""
    wanted = {**log_parameters(machine, tail), "limit": MAX_PAGE_SIZE}
    return get(LogList, f"{job_path(job)}/logs", wanted)


def log_parameters(machine: str | None, tail: int) -> QueryParameters:
    """Return which lines are wanted, of a page as of a stream."""
    return {"tail": tail} if machine is None else {"tail": tail, "machine": machine}
