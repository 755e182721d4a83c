"""Errors of the client.

::

    ScavengerError
    └── ClientError
        ├── NoToken              no token is known for this controller: name one
        ├── CodeRefused          a directory cannot be packed: correct what its problems name
        ├── Unreachable          no answer: start the controller, or try again later
        ├── StillRunning         the job goes on after the time to wait: wait longer, or cancel it
        ├── JobEnded             the job ended without success: ``job`` tells why
        │   ├── JobFailed        its command failed, or never reached the target
        │   ├── JobInfeasible    no configuration meets its limits: relax one of them
        │   ├── JobUnplaced      the clouds gave or left it no machine: ask elsewhere, or later
        │   ├── JobDiverged      its loss or metric was NaN or infinite when it ended
        │   ├── JobCapped        it reached max_cost or max_time
        │   └── JobCancelled     a user cancelled it
        └── ErrorResponse        the controller answered with a problem, ``problem`` holds it
            ├── Unauthenticated  the token is missing or unknown: use another one
            ├── Forbidden        the token lacks the permission: use another one
            │   └── SessionMistrusted      a cookie came without its proof: only browsers see this
            ├── NotFound         there is nothing by that id: list what there is
            ├── Conflict         not possible in this state: look at it first
            │   ├── ConflictState          the job has ended, or is not so far
            │   ├── NothingHeld            no machine waits for a confirmation
            │   ├── IdempotencyInProgress  the first attempt is still at work: wait a moment
            │   ├── ShownOnce              the token was made before: revoke it, create another
            │   ├── PlanExpired            the plan is too old: plan the document again
            │   ├── SequenceGap            the worker did not introduce itself: agents do that
            │   └── PreconditionFailed     the job changed since it was read: read it again
            ├── RateLimited      too many requests
            │   └── TooManyRequests        wait a moment, then send the same request again
            ├── InvalidRequest   the request cannot be used: correct what ``problem.errors`` name
            │   ├── MethodNotAllowed       the path has no such method
            │   ├── TooSlow                the body took too long: send it over a faster connection
            │   ├── PayloadTooLarge        the body is too large: send less
            │   ├── UnsupportedMedia       the body is of another kind: send JSON or YAML
            │   ├── HostMisdirected        the controller does not know this name of its own
            │   ├── Validation             what ``problem.errors`` name is wrong
            │   └── IdempotencyMismatch    the key belongs to another request: take a new one
            └── ServerFault      the controller failed, or its answer cannot be read: read its log
                ├── Internal               a mistake of the controller
                ├── StorageUnavailable     it cannot reach a bucket: try again in a minute
                ├── DatabaseUnavailable    it cannot reach its database: try again in a moment
                └── NotReady               it is starting: try again in a moment

A problem becomes the class of its code; a code that this version does not know, as a newer
controller may send, becomes the class of its status.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar
from urllib.parse import unquote

from scavenger.errors import DocumentProblem, ExitCode, ScavengerError
from scavenger.schemas.jobs import JobPhase, JobView
from scavenger.schemas.problems import ErrorDetail, ProblemView

API_CALL = re.compile(r"; (GET|POST) /v1/.*")


class ClientError(ScavengerError):
    """Root of the errors that the client raises on purpose."""

    exit_code = ExitCode.SERVER


class NoToken(ClientError):
    """No token is known for this controller; name one in SCAVENGER_TOKEN."""

    exit_code = ExitCode.AUTHENTICATION
    headline = "No token for the controller"
    remedy = "set SCAVENGER_TOKEN, or pass --token"

    @property
    def details(self) -> list[tuple[str, str]]:
        return [("What happened", str(self))]


class CodeRefused(ClientError):
    """A directory of code cannot be packed; nothing was sent. Correct what its problems name.

    Attributes:
        directory: The directory, as the user wrote it.
        problems: What is wrong, each with its path in the directory.
    """

    exit_code = ExitCode.USAGE
    remedy = "correct it and submit again"

    def __init__(self, directory: str, problems: Sequence[DocumentProblem]) -> None:
        self.directory = directory
        self.problems = tuple(problems)
        super().__init__(f"{directory}: {'; '.join(map(str, self.problems))}")

    @property
    def headline(self) -> str:
        return f"The code in {self.directory} cannot be sent"

    @property
    def locations(self) -> list[str]:
        return [
            f"{self.directory}/{problem}" if problem.path else f"{self.directory}: {problem}"
            for problem in self.problems
        ]


class Unreachable(ClientError):
    """No answer; start the controller with ``scavenger serve`` or try again later.

    Attributes:
        url: Where it was expected; empty when that is not known either.
    """

    exit_code = ExitCode.UNREACHABLE

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        super().__init__(reason)

    @property
    def remedy(self) -> str:
        # A controller of another computer is not started here.
        if not self.url or "//127.0.0.1" in self.url or "//localhost" in self.url:
            return "start it with: scavenger serve"
        return "correct the address in --url or SCAVENGER_URL, or see that a controller runs there"

    @property
    def headline(self) -> str:
        return f"No controller answers at {self.url}" if self.url else "No controller answers"

    @property
    def details(self) -> list[tuple[str, str]]:
        return [("What happened", str(self))]


class StillRunning(ClientError):
    """The job goes on after the time that was given to wait; wait longer, or cancel it.

    Attributes:
        job: The job, as it was last.
    """

    exit_code = ExitCode.OTHER

    def __init__(self, job: JobView, timeout: float) -> None:
        self.job = job
        super().__init__(f"Job {job.name} ({job.id}) is {job.phase} after {timeout:g} s of waiting")

    @property
    def remedy(self) -> str:
        return f"wait on: scavenger watch {self.job.id}"


class JobEnded(ClientError):
    """A job ended without success; ``job.reason`` says why.

    Attributes:
        outcome: How it ended, in words.
        job: The job, as it ended.
    """

    outcome = "ended"
    exit_code = ExitCode.FAILED

    def __init__(self, job: JobView) -> None:
        self.job = job
        super().__init__(f"Job {job.name} ({job.id}) {self.outcome}")

    @property
    def details(self) -> list[tuple[str, str]]:
        job = self.job
        where = [] if job.applied is None else [str(job.applied)]
        where.append(f"iteration {job.progress.iteration}")
        # The reason names the code of a worker whose command failed.
        if job.worker_exit_code and "exited with code" not in job.reason:
            where.append(f"worker's exit code {job.worker_exit_code}")
        where.append(f"{job.cost.accrued} spent")
        reason = job.reason or "the controller gives no reason"
        return [("What happened", reason), ("Where", " · ".join(where))]

    @property
    def remedy(self) -> str:
        return f"read what happened: scavenger events {self.job.id}"


class JobFailed(JobEnded):
    """The job's command failed, or ended without reaching the target."""

    outcome = "failed"


class JobInfeasible(JobEnded):
    """No configuration meets the job's limits; relax the one that the reason names."""

    outcome = "cannot meet its limits"
    exit_code = ExitCode.INFEASIBLE


class JobUnplaced(JobEnded):
    """The job failed or reached a limit without a machine: the clouds gave or left it none."""

    outcome = "lacked machines"
    exit_code = ExitCode.NO_CAPACITY

    @property
    def remedy(self) -> str:
        return (
            "submit again later, or name another machine type, zone or market: scavenger offers; "
            f"what the clouds said: scavenger events {self.job.id}"
        )


class JobDiverged(JobEnded):
    """The job failed or reached a limit, and its loss or metric was NaN or infinite by then."""

    outcome = "diverged"
    exit_code = ExitCode.DIVERGED


class JobCapped(JobEnded):
    """The job reached max_cost or max_time."""

    outcome = "reached a limit"
    exit_code = ExitCode.CAPPED


class JobCancelled(JobEnded):
    """A user cancelled the job."""

    outcome = "cancelled"
    exit_code = ExitCode.CANCELLED


def error_of_job(job: JobView) -> JobEnded | None:
    """Return the error of a job that ended without success; None where it reached its target.

    Raises:
        ValueError: The job has not ended.
    """
    match job.phase:
        case JobPhase.SUCCEEDED:
            return None
        case JobPhase.FAILED | JobPhase.CAPPED if job.diverged:
            return JobDiverged(job)
        case JobPhase.FAILED | JobPhase.CAPPED if job.lacks_capacity:
            return JobUnplaced(job)
        case JobPhase.FAILED:
            return JobInfeasible(job) if is_infeasible(job) else JobFailed(job)
        case JobPhase.CANCELLED:
            return JobCancelled(job)
        case JobPhase.CAPPED:
            return JobCapped(job)
        case JobPhase.PENDING | JobPhase.STARTING | JobPhase.PROBING | JobPhase.TRAINING:
            raise ValueError(f"job {job.id} has not ended, it is {job.phase}")


def is_infeasible(job: JobView) -> bool:
    """Tell whether a job failed because its limits leave no configuration, not by its command."""
    # The API has no field for this: only the reason tells, and it names the limit.
    return (
        job.phase is JobPhase.FAILED
        and job.worker_exit_code is None
        and re.search(r"\blimits?\b", job.reason) is not None
    )


class ErrorResponse(ClientError):
    """The controller answered with a problem (RFC 9457).

    Attributes:
        code: Code of the problems that become this class; empty for a class of several codes.
        problem: The answer.
        path: Path of the request, such as ``/v1/jobs``.
        retry_after: Seconds after which the controller wants to be asked again; None where a
            repetition is no use.
    """

    code: ClassVar[str] = ""

    def __init__(
        self, problem: ProblemView, path: str = "", retry_after: float | None = None
    ) -> None:
        self.problem = problem
        self.path = path
        self.retry_after = retry_after
        super().__init__(f"{problem.title}: {problem.detail}" if problem.detail else problem.title)

    @property
    def headline(self) -> str:
        return self.problem.title

    @property
    def details(self) -> list[tuple[str, str]]:
        # The detail of a problem that lists its errors repeats them in one line.
        facts = [("Where", _describe(error)) for error in self.problem.errors]
        if self.problem.detail and not facts:
            facts = [("What happened", self.problem.detail)]
        if self.problem.request_id:
            facts.append(("Request", self.problem.request_id))
        return facts


class Unauthenticated(ErrorResponse):
    """The token is missing or unknown (401); use another one."""

    code = "unauthenticated"
    exit_code = ExitCode.AUTHENTICATION
    remedy = (
        "set SCAVENGER_TOKEN or pass --token; connection.json in the data directory of a "
        "controller holds its own"
    )


class Forbidden(ErrorResponse):
    """The token lacks the permission (403); use another one."""

    code = "forbidden"
    exit_code = ExitCode.AUTHENTICATION
    remedy = "use a token that may do this: scavenger token create makes them"


class SessionMistrusted(Forbidden):
    """A cookie came without the proof that the dashboard sent it; programs send a token instead."""

    code = "csrf"
    remedy = "send a token in place of the cookie"


class NotFound(ErrorResponse):
    """There is nothing by that id; list what there is."""

    code = "not_found"
    exit_code = ExitCode.NOT_FOUND

    @property
    def details(self) -> list[tuple[str, str]]:
        # The remedy names a command in place of the call that the controller's answer names.
        return [(label, API_CALL.sub("", fact)) for label, fact in super().details]

    @property
    def remedy(self) -> str:
        match self.path.split("/"):
            case ["", "v1", "plans", *_]:
                return "plan the document again: scavenger plan job.yaml"
            case ["", "v1", "jobs", job, _, *_] if "no job" not in self.problem.detail:
                return f"look at the job: scavenger show {unquote(job)}"
            case _:
                return f"look at what there is: {list_command_for(self.path)}"


class Conflict(ErrorResponse):
    """Not possible in the state the job is in; look at it first."""

    exit_code = ExitCode.CONFLICT

    @property
    def remedy(self) -> str:
        return f"look at it first: {show_command_for(self.path)}"


class ConflictState(Conflict):
    """The job has ended, or is not so far; look at it first."""

    code = "conflict_state"


class NothingHeld(Conflict):
    """No machine waits for a confirmation; there is nothing to do."""

    code = "nothing_held"
    remedy = "look at what was found: scavenger admin sweep"


class IdempotencyInProgress(Conflict):
    """The first attempt of this request is still at work; wait a moment, then send it again."""

    code = "idempotency_in_progress"
    remedy = "wait a moment, then look whether it took effect"


class ShownOnce(Conflict):
    """The token was made before, and its secret is shown once; revoke it and create another."""

    code = "shown_once"
    remedy = "revoke that token with scavenger token revoke, and create another"


class PlanExpired(Conflict):
    """The plan is older than its 15 minutes; plan the document again, and submit that plan."""

    code = "plan_expired"
    remedy = "plan the document again with scavenger plan, and submit the new plan"


class SequenceGap(Conflict):
    """The worker did not introduce itself first; only agents see this, and introduce it again."""

    code = "sequence_gap"


class PreconditionFailed(Conflict):
    """The job changed since it was read; read it again, then decide again."""

    code = "precondition_failed"

    @property
    def remedy(self) -> str:
        return f"it has changed since: look at it again, {show_command_for(self.path)}"


class RateLimited(ErrorResponse):
    """Too many requests; wait a moment, then send the same request again."""

    exit_code = ExitCode.UNREACHABLE
    remedy = "wait a moment and try again"


class TooManyRequests(RateLimited):
    """Too many requests of this token; wait a moment, then send the same request again."""

    code = "too_many_requests"


class InvalidRequest(ErrorResponse):
    """The request cannot be used; correct what ``problem.errors`` name and send it again."""

    exit_code = ExitCode.USAGE
    remedy = "correct it and try again"


class MethodNotAllowed(InvalidRequest):
    """The path has no such method; this client is older or newer than the controller."""

    code = "method_not_allowed"
    remedy = "install the same version here and in the controller: scavenger doctor compares them"


class TooSlow(InvalidRequest):
    """The body took too long to arrive; send it again over a faster connection."""

    code = "too_slow"
    remedy = "send it again over a faster connection"


class PayloadTooLarge(InvalidRequest):
    """The body is too large; send less of it."""

    code = "payload_too_large"
    remedy = "send less: leave out of the code or the document what the job does not need"


class UnsupportedMedia(InvalidRequest):
    """The body is of a kind that the path does not take; send JSON or YAML."""

    code = "unsupported_media"
    remedy = "name the file .json or .yaml, as what it holds"


class HostMisdirected(InvalidRequest):
    """The controller does not know the name by which it was asked; let it know the name."""

    code = "misdirected"
    remedy = "use the address that the controller printed, or add this name to its SCAVENGER_NAMES"


class Validation(InvalidRequest):
    """What ``problem.errors`` name is wrong; correct it and send the request again."""

    code = "validation"


class IdempotencyMismatch(InvalidRequest):
    """The idempotency key belongs to another request; take a new one."""

    code = "idempotency_mismatch"
    remedy = "run the command again: it takes a new key"


class ServerFault(ErrorResponse):
    """The controller failed, or its answer cannot be read; read its log, then try again."""

    remedy = "read what the controller logged, then try again"


class Internal(ServerFault):
    """The controller made a mistake; read its log."""

    code = "internal"


class StorageUnavailable(ServerFault):
    """The controller cannot reach or use a bucket; try again in a minute."""

    code = "bucket_unavailable"
    remedy = "try again in a minute; what the bucket refused is in the detail"


class DatabaseUnavailable(ServerFault):
    """The controller cannot reach its database; try again in a moment."""

    code = "database_unavailable"
    remedy = "try again in a moment; if it stays so, look at the database of the controller"


class NotReady(ServerFault):
    """The controller is starting or stopping; try again in a moment."""

    code = "not_ready"
    remedy = "try again in a moment"


_BY_STATUS = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Conflict,
    412: Conflict,
    429: RateLimited,
}


def error_for_problem(
    problem: ProblemView, path: str = "", retry_after: float | None = None
) -> ErrorResponse:
    """Return the error of a problem's code, or that of its status, for the path of a request."""
    kind = error_classes().get(problem.code)
    if kind is None:
        is_request_at_fault = 400 <= problem.status < 500
        other = InvalidRequest if is_request_at_fault else ServerFault
        kind = _BY_STATUS.get(problem.status, other)
    return kind(problem, path, retry_after)


def error_classes() -> dict[str, type[ErrorResponse]]:
    """Return the class of each code."""
    return {kind.code: kind for kind in _kinds_of(ErrorResponse) if kind.code}


def _kinds_of(kind: type[ErrorResponse]) -> Iterator[type[ErrorResponse]]:
    for each in kind.__subclasses__():
        yield each
        yield from _kinds_of(each)


def list_command_for(path: str) -> str:
    """Return the command that lists resources of the kind that a path names.

    >>> list_command_for("/v1/tokens/0/actions/revoke"), list_command_for("/v1/jobs/job_0/curve")
    ('scavenger token list', 'scavenger list')
    """
    commands = {"tokens": "token list", "sweeps": "admin sweep", "models": "model list"}
    commands |= {"webhooks": "webhook list"}
    kind = path.removeprefix("/v1/").partition("/")[0]
    return f"scavenger {commands.get(kind, 'list')}"


def show_command_for(path: str) -> str:
    """Return the command that shows the resource of a path, or lists all of its kind.

    >>> show_command_for("/v1/jobs/job_0/actions/cancel"), show_command_for("/v1/sweeps")
    ('scavenger show job_0', 'scavenger admin sweep')
    """
    match path.split("/"):
        case ["", "v1", "jobs", job, *_]:
            return f"scavenger show {unquote(job)}"
        case _:
            return list_command_for(path)


def _describe(error: ErrorDetail) -> str:
    position = f"line {error.line}, column {error.column or 1}: " if error.line else ""
    pointer = f"{error.pointer}: " if error.pointer else ""
    return f"{position}{pointer}{error.message}"
