"""Authentication, and the permission that each route states in its signature.

A route takes a parameter of type ``Viewer``, ``Operator``, ``CurrentWorker`` and so on, or lists
one of the constants such as ``PUBLIC`` in its ``dependencies``. ``GuardedRoute`` enforces this
before FastAPI reads the body, and ``permissions_of`` refuses an application with a route that
states none. A path without a route answers strangers as a route does that they may not use.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any, ClassVar, NoReturn

from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI, Query, Security, params
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_flat_params
from fastapi.openapi.models import HTTPBearer
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts
from fastapi.security.base import SecurityBase
from sqlalchemy import Connection
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from scavenger.schemas.access import UserRole
from service.api.dependencies import AppState
from service.api.problems import ApiProblem
from service.api.validation import (
    ChangesNothing,
    CheckedRequest,
    StreamsBody,
    check_media_type,
    check_parameters,
    read_body,
    storable,
)
from service.auth.permissions import (
    BootstrapOnly,
    BootstrapPrincipal,
    Permission,
    Principal,
    PublicAccess,
    UserPrincipal,
    UsersFromRole,
    WorkerPrincipal,
    WorkersOnly,
    is_permitted,
)
from service.auth.rate_limit import (
    MACHINE_LIMIT,
    STRANGER_LIMIT,
    USER_LIMIT,
    RateLimit,
    RateLimiter,
)
from service.auth.sessions import SESSION_COOKIE, secret_digest
from service.auth.tokens import ControllerKeys, TokenDigest
from service.db import access, jobs, sessions
from service.db.access import StoredToken
from service.db.sessions import StoredSession

NO_CREDENTIALS = (
    "send the header Authorization: Bearer TOKEN; scavenger serve keeps one in connection.json, "
    "and scavenger token create makes others"
)
UNKNOWN_CREDENTIALS = "this controller does not know this token"
WRONG_CREDENTIALS = "this token does not open this path"
NO_SESSION = "this session is unknown or was ended; sign in again, or run: scavenger dashboard"
NO_SUCH_JOB = "there is no job of that id; GET /v1/jobs lists them"


class RequiresPermission:
    """A dependency that states a permission and returns the principal that was let in."""

    def __init__(self, permission: Permission) -> None:
        self.permission = permission

    async def __call__(self, request: Request) -> Principal | None:
        """Return the principal; ``GuardedRoute`` has put it there."""
        return request.scope.get("principal")


class RequiresToken(RequiresPermission, SecurityBase):
    """The same for a permission that needs a token; FastAPI describes the token in OpenAPI."""

    def __init__(self, permission: UsersFromRole | WorkersOnly | BootstrapOnly) -> None:
        super().__init__(permission)
        is_user = isinstance(permission, UsersFromRole)
        self.scheme_name = "person" if is_user else "machine"
        self.model = HTTPBearer(bearerFormat=None if is_user else "JWT")


PUBLIC = Depends(RequiresPermission(PublicAccess()))
VIEWER = Security(RequiresToken(UsersFromRole(UserRole.VIEWER)))
SUBMITTER = Security(RequiresToken(UsersFromRole(UserRole.SUBMITTER)))
OPERATOR = Security(RequiresToken(UsersFromRole(UserRole.OPERATOR)))
ADMIN = Security(RequiresToken(UsersFromRole(UserRole.ADMIN)))
INSTALLATION_VIEWER = Security(RequiresToken(UsersFromRole(UserRole.VIEWER, is_of_all=True)))
INSTALLATION_OPERATOR = Security(RequiresToken(UsersFromRole(UserRole.OPERATOR, is_of_all=True)))
INSTALLATION_ADMIN = Security(RequiresToken(UsersFromRole(UserRole.ADMIN, is_of_all=True)))

Viewer = Annotated[UserPrincipal, VIEWER]
Submitter = Annotated[UserPrincipal, SUBMITTER]
Operator = Annotated[UserPrincipal, OPERATOR]
Admin = Annotated[UserPrincipal, ADMIN]
CurrentWorker = Annotated[WorkerPrincipal, Security(RequiresToken(WorkersOnly()))]
BootstrapWorker = Annotated[BootstrapPrincipal, Security(RequiresToken(BootstrapOnly()))]

ProjectParameter = Annotated[
    str | None,
    Query(alias="project", description="Only what belongs to this project", min_length=1),
]


async def narrow_to_project(user: Viewer, project: ProjectParameter = None) -> UserPrincipal:
    """Return the user as one who sees the project that the request asks for, and no other."""
    if project is None:
        return user
    if user.sees(project):
        return replace(user, project=storable(project))
    raise ApiProblem("forbidden", f"this token sees the project {user.project}: leave out project")


ProjectViewer = Annotated[UserPrincipal, Depends(narrow_to_project)]


class GuardedRoute(APIRoute):
    """A route that enforces its permission and the limits of bodies before FastAPI runs it.

    FastAPI parses a body before it resolves dependencies. A permission enforced by a dependency
    alone would let strangers upload, and tell them which bodies a route takes.

    Attributes:
        takes_any_parameter: Whether query parameters are read elsewhere, as a page's by its script.
    """

    takes_any_parameter: ClassVar[bool] = False

    @property
    def permission(self) -> Permission:
        """The permission in the signature.

        Raises:
            ValueError: The route states none, or several.
        """
        stated = [
            each.call.permission
            for each in all_dependencies(self.dependant)
            if isinstance(each.call, RequiresPermission)
        ]
        if len(stated) != 1:
            raise ValueError(
                f"{self.path} states {len(stated)} permissions: give it one, by a parameter such "
                "as `user: Viewer` or by `dependencies=[VIEWER]`"
            )
        return stated[0]

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, permission = super().get_route_handler(), self.permission
        named = {type(each.call) for each in all_dependencies(self.dependant)}
        is_streamed, is_question = StreamsBody in named, ChangesNothing in named
        parameters = [
            field.alias
            for field in get_flat_params(self.dependant)
            if isinstance(field.field_info, params.Query)
        ]

        async def guarded(request: Request) -> Response:
            request.scope["audited_route"] = self.path
            request.scope["is_question"] = is_question
            await request.app.state.guard.admit(request, permission)
            if is_streamed:
                check_parameters(request, parameters)
                return await handle(request)
            body = await read_body(request)
            if not self.takes_any_parameter:
                check_parameters(request, parameters)
            if self.body_field is not None:
                check_media_type(request, body)
            return await handle(CheckedRequest(request, body))

        return guarded


def all_dependencies(dependant: Dependant) -> Iterator[Dependant]:
    """Yield the dependencies of a route, and theirs."""
    for each in dependant.dependencies:
        yield each
        yield from all_dependencies(each)


def permissions_of(app: FastAPI) -> Mapping[tuple[str, str], Permission]:
    """Return the permission of every route, by method and path.

    Raises:
        ValueError: A route is not guarded; the controller must not start with it.
    """
    return {
        (method, str(context.path)): route.permission
        for context, route in guarded_routes(app)
        for method in sorted(route.methods or ())
    }


def guarded_routes(app: FastAPI) -> Iterator[tuple[RouteContext, GuardedRoute]]:
    """Yield every route as it was included.

    Raises:
        ValueError: A route of another class would let strangers in.
    """
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        if not isinstance(route, GuardedRoute):
            name = f"{type(route).__name__} {getattr(route, 'path', '')}".strip()
            raise ValueError(f"{name} states no permission: make it a GuardedRoute")
        yield context, route


@dataclass(frozen=True, slots=True)
class Guard:
    """Recognises principals, counts their requests and enforces permissions."""

    app_state: AppState
    keys: ControllerKeys
    limiter: RateLimiter

    async def admit(self, request: Request, permission: Permission) -> None:
        """Let a request reach its route.

        The project is judged here and not in the routes, for every path that names a job: a route
        that is added tomorrow has the boundary without knowing of it.

        Raises:
            ApiProblem: The token is missing, unknown, expired or revoked, lacks the permission,
                or sends too many requests; or the job belongs to another project.
        """
        if isinstance(permission, PublicAccess):
            return
        principal, sees_it = await self._recognise(request, request.path_params.get("job"))
        if not is_permitted(principal, permission):
            raise ApiProblem("forbidden", denial_reason(principal, permission))
        if not sees_it:
            raise ApiProblem("not_found", NO_SUCH_JOB)

    async def answer_unrouted(self, request: Request, _: Exception) -> NoReturn:
        """Answer a path without a route, or a method that its routes lack.

        Strangers learn nothing from it: they get 401 as on every path that exists.

        Raises:
            ApiProblem: Always.
        """
        matching = [
            route
            for context, route in guarded_routes(request.app)
            if context.matches(request.scope)[0] is Match.PARTIAL
        ]
        if not any(isinstance(route.permission, PublicAccess) for route in matching):
            principal = (await self._recognise(request, None))[0]
            if not isinstance(principal, UserPrincipal):
                raise ApiProblem("forbidden", WRONG_CREDENTIALS)
        if not matching:
            raise ApiProblem("not_found", "there is no such path; they all begin with /v1/")
        methods = ", ".join(sorted(method for route in matching for method in route.methods or ()))
        detail = f"this path takes {methods}"
        raise ApiProblem("method_not_allowed", detail, headers={"Allow": methods})

    async def _recognise(self, request: Request, job: str | None) -> tuple[Principal, bool]:
        """Return the principal, and whether it may know of a job."""
        cookie = request.cookies.get(SESSION_COOKIE, "")
        # A cookie is sent by any page that can make the browser ask; a header only on purpose.
        if cookie and "authorization" not in request.headers:
            return await self._recognise_session(request, secret_digest(cookie), job)
        text = bearer_token(request.headers)
        now = self.app_state.now()
        # Machines are known by a signature: they are heard while the database is away.
        worker = self.keys.read_worker_token(text, now.timestamp())
        machine = worker or self.keys.read_bootstrap_token(text)
        if machine is not None:
            self._count(MACHINE_LIMIT, machine.worker)
            request.scope["principal"] = machine
            return machine, True
        token, sees_it = None, True
        if text:
            token, sees_it = await run_sync(self._find_token, TokenDigest.of(text), job)
        if token is None:
            self.refuse_stranger(request, UNKNOWN_CREDENTIALS if text else NO_CREDENTIALS)
        self._count(USER_LIMIT, token.id)
        # Known from here on, so that the audit trail names a revoked token, too.
        request.scope["principal"] = token.holder
        if reason := token.invalid_reason(now):
            raise ApiProblem("unauthenticated", f"{reason}; ask an admin for another")
        return token.holder, sees_it

    async def _recognise_session(
        self, request: Request, digest: str, job: str | None
    ) -> tuple[Principal, bool]:
        """Return the principal of a session, and whether it may know of a job.

        Raises:
            ApiProblem: The session has ended, or another page than the dashboard's asks for a
                change.
        """
        session, sees_it = await run_sync(self._find_session, digest, job)
        if session is None:
            self.refuse_stranger(request, NO_SESSION)
        self._count(USER_LIMIT, session.token.id)
        request.scope["principal"] = session.holder
        if reason := session.invalid_reason(self.app_state.now()):
            raise ApiProblem("unauthenticated", f"{reason}; sign in again")
        if request.method != "GET":
            check_sender(request, self.keys.csrf_token(digest))
        return session.holder, sees_it

    def refuse_stranger(self, request: Request, why: str) -> NoReturn:
        """Answer wrong credentials, which makes an address that sends many of them wait.

        Raises:
            ApiProblem: Always.
        """
        self._count(STRANGER_LIMIT, request.client.host if request.client else "")
        raise ApiProblem("unauthenticated", why)

    def _find_session(self, digest: str, job: str | None) -> tuple[StoredSession | None, bool]:
        """Return a session, and whether its holder may know of a job, in one transaction."""
        now = self.app_state.now()
        with self.app_state.engine.begin() as connection:
            session = sessions.find_session(connection, digest)
            if session is None or session.invalid_reason(now):
                return session, True
            sessions.record_session_use(connection, session, now)
            return session, sees_job(connection, session.token, job)

    def _find_token(
        self, credential: TokenDigest, job: str | None
    ) -> tuple[StoredToken | None, bool]:
        """Return a token, and whether its holder may know of a job, in one transaction."""
        now = self.app_state.now()
        with self.app_state.engine.begin() as connection:
            token = access.find_token(connection, credential)
            if token is None or token.invalid_reason(now):
                return token, True
            access.record_token_use(connection, token, now)
            return token, sees_job(connection, token, job)

    def _count(self, limit: RateLimit, sender: str) -> None:
        if wait := self.limiter.wait(limit, sender):
            seconds = max(1, math.ceil(wait))
            headers = {"Retry-After": str(seconds)}
            raise ApiProblem("too_many_requests", f"try again in {seconds} s", headers=headers)


def sees_job(connection: Connection, token: StoredToken, job: str | None) -> bool:
    """Tell whether the holder of a token may know of a job; of none, it always may."""
    project = None if job is None else jobs.project_of(connection, storable(job))
    return job is None or (project is not None and token.holder.sees(project))


def check_sender(request: Request, csrf: str) -> None:
    """Refuse a request with a cookie that a page of another origin may have made.

    Raises:
        ApiProblem: It has not the session's own ``X-CSRF``, or comes from another origin.
    """
    sent = request.headers.get("x-csrf", "")
    if not hmac.compare_digest(sent.encode(), csrf.encode()):
        detail = "send the header X-CSRF with the csrf of GET /v1/session"
        raise ApiProblem("csrf", detail)
    if request_origin(request) is not RequestOrigin.SAME:
        detail = "a request with a cookie must come from a page of this controller"
        raise ApiProblem("csrf", detail)


class RequestOrigin(Enum):
    """Where the page is from that sends a request, as its browser says; no script changes that."""

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"  # no browser, or a very old one


def request_origin(request: Request) -> RequestOrigin:
    """Tell where the page is from that sends a request."""
    site, origin = (request.headers.get(name) for name in ("sec-fetch-site", "origin"))
    if site is not None:
        return RequestOrigin.SAME if site == "same-origin" else RequestOrigin.OTHER
    if origin is None:
        return RequestOrigin.UNKNOWN
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    return RequestOrigin.SAME if origin.lower() == own.lower() else RequestOrigin.OTHER


def denial_reason(principal: Principal, permission: Permission) -> str:
    """Say why a principal may not use a route."""
    if not (isinstance(principal, UserPrincipal) and isinstance(permission, UsersFromRole)):
        return WRONG_CREDENTIALS
    if principal.role.covers(permission.role):
        return "this is about every project, and this token is for one"
    return f"this needs a token with the role {permission.role}; this one is of a {principal.role}"


def bearer_token(headers: Headers) -> str:
    """Return the token that a request carries; empty if it carries none."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    text = token.strip() if kind.lower() == "bearer" else ""
    return text if text.isascii() else ""
