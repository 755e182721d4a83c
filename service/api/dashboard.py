"""The dashboard: one page, its scripts and styles. All data come from the routes under /v1.

These routes are open: the page shows nothing before its browser has signed in. Its policy lets it
load only what this controller serves, and run no script that stands in a text.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Request, Response
from starlette.convertors import StringConvertor, register_url_convertor

from service.api.dependencies import State
from service.api.negotiation import takes_gzip
from service.api.problems import ApiProblem
from service.api.security import PUBLIC, GuardedRoute
from service.dashboard_files import StaticFile

DASHBOARD_PAGES = (
    *("jobs", "models", "cost", "fleet", "events", "compare", "plan", "settings", "login"),
)
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
# The page names its assets by their hashes: it is asked for anew each time, and they never are.
PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Vary": "Accept-Encoding",
}
ASSET_HEADERS = {**PAGE_HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}


class DashboardPath(StringConvertor):
    """Path of a page of the dashboard, which its script reads."""

    regex = rf"(?:{'|'.join(DASHBOARD_PAGES)})(?:/.*)?"


register_url_convertor("dashboard_path", DashboardPath())


class PageRoute(GuardedRoute):
    """A route of a page, whose address may hold filters that the page's script reads."""

    takes_any_parameter = True


router = APIRouter(route_class=PageRoute, include_in_schema=False, dependencies=[PUBLIC])


@router.get("/")
@router.get("/{page:dashboard_path}")
def show_page(app_state: State, request: Request) -> Response:
    """Return the page of the dashboard, the same at each of its paths."""
    return file_response(app_state.dashboard.index, request, PAGE_HEADERS)


@router.get("/assets/{asset:path}")
def show_asset(app_state: State, request: Request, asset: str) -> Response:
    """Return a script, style or picture of the dashboard."""
    file = app_state.dashboard.assets.get(asset)
    if file is None:
        detail = "this version of the dashboard has no such file; load its page again"
        raise ApiProblem("not_found", detail)
    return file_response(file, request, ASSET_HEADERS)


def file_response(file: StaticFile, request: Request, headers: Mapping[str, str]) -> Response:
    """Return a file, compressed where the browser takes that; 304 where the browser has it."""
    tag = f'"{file.digest}"'
    sent = {**headers, "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=sent)
    packed = file.compressed
    if packed is None or not takes_gzip(request.headers):
        return Response(file.content, headers=sent, media_type=file.media_type)
    return Response(
        packed, headers={**sent, "Content-Encoding": "gzip"}, media_type=file.media_type
    )
