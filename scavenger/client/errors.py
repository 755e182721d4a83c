"""Errors of the client.

::

    ClientError
    ├── NoToken              no token is known for this controller: name one
    ├── Unreachable          no answer: start the controller, or try again later
    └── ErrorResponse        the controller answered with a problem, ``problem`` holds it
        ├── AccessDenied     the token is missing, wrong or lacks the permission: use another one
        ├── NotFound         there is nothing by that id: list what there is
        ├── Conflict         not possible in this state: look at the job first
        ├── RateLimited      too many requests: wait a moment, then send the same request again
        ├── InvalidRequest   the request cannot be used: correct what ``problem.errors`` name
        └── ServerFault      the controller failed, or its answer cannot be read: read its log
"""

from __future__ import annotations

from scavenger.schemas import ProblemView


class ClientError(Exception):
    """Root of everything the client raises on purpose."""


class NoToken(ClientError):
    """No token is known for this controller; name one in SCAVENGER_TOKEN."""


class Unreachable(ClientError):
    """Nothing answers; start the controller with ``scavenger serve`` or try again later.

    Attributes:
        url: Where it was expected; empty when that is not known either.
    """

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        super().__init__(reason)


class ErrorResponse(ClientError):
    """The controller answered with a problem.

    Attributes:
        problem: What it said.
        path: What was asked for, such as ``/v1/jobs``.
    """

    def __init__(self, problem: ProblemView, path: str = "") -> None:
        self.problem = problem
        self.path = path
        super().__init__(f"{problem.title}: {problem.detail}" if problem.detail else problem.title)


class AccessDenied(ErrorResponse):
    """The token is missing, wrong, or not allowed to do this; use another one."""


class NotFound(ErrorResponse):
    """There is nothing by that id; list what there is."""


class Conflict(ErrorResponse):
    """Not possible in the state the job is in; look at it first."""


class RateLimited(ErrorResponse):
    """The controller is asked too often; wait a moment, then ask the same again."""


class InvalidRequest(ErrorResponse):
    """The request cannot be used; correct what ``problem.errors`` name and send it again."""


class ServerFault(ErrorResponse):
    """The controller failed or answered something unreadable; read its log, then try again."""


def error_for_problem(problem: ProblemView, path: str = "") -> ErrorResponse:
    """Return the error that fits the status of a problem, for what was asked for."""
    match problem.status:
        case 401 | 403:
            return AccessDenied(problem, path)
        case 404:
            return NotFound(problem, path)
        case 409 | 412:
            return Conflict(problem, path)
        case 429:
            return RateLimited(problem, path)
        case status if 400 <= status < 500:
            return InvalidRequest(problem, path)
        case _:
            return ServerFault(problem, path)
