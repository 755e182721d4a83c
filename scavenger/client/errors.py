"""Errors of the client.

::

    ScavengerError
    └── ClientError
        ├── NoToken              no token is known for this controller: name one
        ├── CodeRefused          a directory cannot be packed: correct what its problems name
        ├── Unreachable          no answer: start the controller, or try again later
        └── ErrorResponse        the controller answered with a problem, ``problem`` holds it
            ├── Unauthenticated  the token is missing or unknown: use another one
            ├── Forbidden        the token lacks the permission: use another one
            ├── NotFound         there is nothing by that id: list what there is
            ├── Conflict         not possible in this state: look at the job first
            ├── RateLimited      too many requests: wait a moment, then send the same request again
            ├── InvalidRequest   the request cannot be used: correct what ``problem.errors`` name
            └── ServerFault      the controller failed, or its answer cannot be read: read its log
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from scavenger.errors import DocumentProblem, ExitCode, ScavengerError
from scavenger.schemas import ErrorDetail, ProblemView


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
    remedy = "start it with: scavenger serve"

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        super().__init__(reason)

    @property
    def headline(self) -> str:
        return f"No controller answers at {self.url}" if self.url else "No controller answers"

    @property
    def details(self) -> list[tuple[str, str]]:
        return [("What happened", str(self))]


class ErrorResponse(ClientError):
    """The controller answered with a problem (RFC 9457).

    Attributes:
        problem: The answer.
        path: Path of the request, such as ``/v1/jobs``.
    """

    def __init__(self, problem: ProblemView, path: str = "") -> None:
        self.problem = problem
        self.path = path
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

    exit_code = ExitCode.AUTHENTICATION
    remedy = (
        "set SCAVENGER_TOKEN or pass --token; connection.json in the data directory of a "
        "controller holds its own"
    )


class Forbidden(ErrorResponse):
    """The token lacks the permission (403); use another one."""

    exit_code = ExitCode.AUTHENTICATION
    remedy = "use a token that may do this: scavenger token create makes them"


class NotFound(ErrorResponse):
    """There is nothing by that id; list what there is."""

    exit_code = ExitCode.NOT_FOUND

    @property
    def remedy(self) -> str:
        return f"look at what there is: {list_command_for(self.path)}"


class Conflict(ErrorResponse):
    """Not possible in the state the job is in; look at it first."""

    exit_code = ExitCode.CONFLICT

    @property
    def remedy(self) -> str:
        return f"look at it first: {show_command_for(self.path)}"


class RateLimited(ErrorResponse):
    """Too many requests; wait a moment, then send the same request again."""

    exit_code = ExitCode.UNREACHABLE
    remedy = "wait a moment and try again"


class InvalidRequest(ErrorResponse):
    """The request cannot be used; correct what ``problem.errors`` name and send it again."""

    exit_code = ExitCode.USAGE
    remedy = "correct it and try again"


class ServerFault(ErrorResponse):
    """The controller failed, or its answer cannot be read; read its log, then try again."""

    remedy = "read what the controller logged, then try again"


_BY_STATUS = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    429: RateLimited,
}


def error_for_problem(problem: ProblemView, path: str = "") -> ErrorResponse:
    """Return the error that fits the status of a problem, for the path of a request."""
    is_request_at_fault = 400 <= problem.status < 500
    other = InvalidRequest if is_request_at_fault else ServerFault
    return _BY_STATUS.get(problem.status, other)(problem, path)


def list_command_for(path: str) -> str:
    """Return the command that lists resources of the kind that a path names.

    >>> list_command_for("/v1/tokens/0/actions/revoke"), list_command_for("/v1/jobs/job_0/curve")
    ('scavenger token list', 'scavenger list')
    """
    commands = {"tokens": "token list", "sweeps": "admin sweep", "models": "models"}
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
