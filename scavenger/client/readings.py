"""Methods of both clients that read machines, series, logs and models."""

from __future__ import annotations

from urllib.parse import quote

from scavenger.client.core import (
    JOB_LOOK_INTERVAL,
    MAX_PAGE_SIZE,
    ApiRequest,
    Conversation,
    Found,
    Listing,
    Sleep,
    get,
    iterate_items,
    job_path,
    next_page,
    post,
    send,
    send_patiently,
)
from scavenger.client.methods import conversation, listing, one_request
from scavenger.reading_schemas import (
    ForgottenModelView,
    LogLineView,
    LogList,
    MachineList,
    MachineView,
    ModelDetailView,
    VersionView,
)
from scavenger.schemas import JobView


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
    def list_log(
        self, job: str, machine: str | None = None, tail: int = 200
    ) -> Conversation[LogList]:
        """Return the lines that the commands of a job printed last, oldest first."""
        request, lines = log_request(job, machine, tail=tail), list[LogLineView]()
        page = yield from send(request)
        lines += page.lines
        while following := next_page(request, page):
            request = following
            page = yield from send(request)
            lines += page.lines
        return LogList(lines=lines, dropped=page.dropped)

    @listing
    def log(self, job: str, machine: str | None = None, tail: int = 200) -> Listing[LogLineView]:
        """Yield the lines that the commands of a job print, until it has ended.

        Args:
            job: Id of the job.
            machine: Only of this machine.
            tail: Begin with so many of the newest lines, at least 1.
        """
        look, after = get(JobView, job_path(job)), None
        while True:
            # The job first: once it has ended, the lines that follow are all there will be.
            is_over = (yield from send_patiently(look)).phase.is_final
            request: ApiRequest[LogList] | None
            request = log_request(job, machine, tail=tail, after=after)
            while request is not None:
                page = yield from send_patiently(request)
                for line in page.lines:
                    after = line.number
                    yield Found(line)
                request = next_page(request, page)
            if is_over:
                return
            yield Sleep(JOB_LOOK_INTERVAL)

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


def log_request(
    job: str, machine: str | None, tail: int, after: int | None = None
) -> ApiRequest[LogList]:
    """Return the request for lines: after a number, or else the newest."""
    wanted: dict[str, str | int] = {"limit": MAX_PAGE_SIZE}
    wanted |= {"tail": tail} if after is None else {"after": after}
    wanted |= {} if machine is None else {"machine": machine}
    return get(LogList, f"{job_path(job)}/logs", wanted)
