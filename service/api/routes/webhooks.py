"""Webhooks, for admins of their project: create, change, rotate, delete, and see deliveries."""

from __future__ import annotations

import re
import secrets
from datetime import datetime
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from sqlalchemy import Connection

from scavenger.errors import DocumentProblem
from scavenger.schemas.webhooks import (
    NOTABLE_EVENTS,
    DeliveryList,
    DeliveryState,
    DeliveryView,
    EventKind,
    WebhookKind,
    WebhookList,
    WebhookView,
)
from service.api.dependencies import AppState, SigningKeys, State
from service.api.idempotency import IdempotentRequestDep
from service.api.openapi import (
    LOCATION_HEADER,
    REPLAYED_HEADER,
    ResponseDocs,
    answers_problems,
    page_responses,
)
from service.api.pagination import Page
from service.api.problems import ApiProblem
from service.api.routes.access import ProjectName
from service.api.security import Admin, GuardedRoute
from service.api.validation import TextRule
from service.auth.permissions import UserPrincipal
from service.auth.tokens import ControllerKeys
from service.db import webhooks
from service.db.idempotency import StoredAnswer
from service.db.webhooks import StoredDelivery, StoredWebhook
from service.errors import AddressRefused, Unanswered
from service.webhooks.messages import text_of_secret

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=GuardedRoute)

WEBHOOK_ID_PATTERN = re.compile(r"whk_[0-9a-f]{16}")
DELIVERY_NUMBER_PATTERN = re.compile(r"[1-9][0-9]{0,17}")
MAX_WEBHOOKS_PER_PROJECT = 50
WEBHOOK_POSITION = TypeAdapter(tuple[datetime, str])
NO_SUCH_WEBHOOK = "there is no webhook of that id; GET /v1/webhooks lists them"
REPLAYABLE: ResponseDocs = {202: {"headers": REPLAYED_HEADER}}

WebhookUrl = Annotated[
    str,
    TextRule(
        r"^https?://[!-~]{1,1990}$",
        "write https:// and an address in ASCII without blanks, at most 2000 characters",
    ),
]
WantedEventKinds = Annotated[list[EventKind], Field(min_length=1, max_length=len(EventKind))]


class WebhookRequest(BaseModel):
    """A webhook to create.

    Attributes:
        events: Kinds of events to send, ``*`` for all; without it those that a person who is not
            watching wants to hear of.
        project: The user's own if it is missing.
    """

    model_config = ConfigDict(extra="forbid")

    url: WebhookUrl
    kind: WebhookKind = WebhookKind.GENERIC
    events: WantedEventKinds | None = None
    project: ProjectName | None = None


class WebhookChange(BaseModel):
    """What to change; what is missing stays as it is."""

    model_config = ConfigDict(extra="forbid")

    url: WebhookUrl | None = None
    events: WantedEventKinds | None = None
    is_enabled: Annotated[bool, Field(strict=True)] | None = None


async def creation(app_state: State, request: WebhookRequest) -> WebhookRequest:
    """Return a webhook to create whose address the controller would connect to."""
    await check_address(app_state, request.url)
    return request


async def modification(app_state: State, request: WebhookChange) -> WebhookChange:
    """Return a change whose address, if it has one, the controller would connect to."""
    if request.url is not None:
        await check_address(app_state, request.url)
    return request


async def check_address(app_state: AppState, url: str) -> None:
    """Refuse an address of a private network, or of no host at all."""
    try:
        await app_state.outbound.check(url)
    except AddressRefused as error:
        why = f"{error}; webhooks reach the public internet only"
    except Unanswered as error:
        why = f"{error}; check its spelling"
    else:
        return
    problem = DocumentProblem("url", why)
    raise ApiProblem("validation", str(problem), [problem])


Creation = Annotated[WebhookRequest, Depends(creation)]
Modification = Annotated[WebhookChange, Depends(modification)]


@router.post(
    "",
    status_code=201,
    response_model=WebhookView,
    responses={201: {"headers": {**LOCATION_HEADER, **REPLAYED_HEADER}}},
)
def create_webhook(
    app_state: State,
    user: Admin,
    keys: SigningKeys,
    request: Creation,
    idempotent: IdempotentRequestDep,
) -> Response:
    """Create a webhook; this answer and those to rotations are the only ones with its secret.

    An address of a private network is refused.
    """
    project = request.project or user.project
    if not user.sees(project):
        raise ApiProblem("forbidden", f"an admin of {user.project} makes webhooks for that only")
    effect = partial(store_webhook, app_state, user, project, request)
    return with_secret(idempotent.run_once(app_state, effect), keys)


@router.get("", responses=page_responses("list_webhooks"))
def list_webhooks(app_state: State, user: Admin, page: Page) -> WebhookList:
    """List the webhooks of the user's project, newest first, without their secrets."""
    before = page.position("webhooks", WEBHOOK_POSITION)
    with app_state.engine.connect() as connection:
        found = webhooks.page_of_webhooks(connection, user.project, before, page.limit + 1)
    shown, following = page.split(
        "webhooks", found, lambda last: (last.created_at.isoformat(), last.id)
    )
    return WebhookList(webhooks=[webhook_view(each) for each in shown], next_cursor=following)


@router.get("/{webhook}", openapi_extra=answers_problems("not_found"))
def get_webhook(app_state: State, user: Admin, webhook: str) -> WebhookView:
    """Show a webhook, without its secret."""
    with app_state.engine.connect() as connection:
        return webhook_view(find_webhook(connection, user, webhook))


@router.patch("/{webhook}", openapi_extra=answers_problems("not_found"))
def change_webhook(
    app_state: State, user: Admin, webhook: str, request: Modification
) -> WebhookView:
    """Change the address or the events of a webhook, or switch it on or off.

    One that was off is told of events from that moment on.
    """
    with app_state.engine.begin() as connection:
        found = find_webhook(connection, user, webhook)
        if all(value is None for _, value in request):
            raise ApiProblem("validation", "name what to change: url, events or is_enabled")
        changes: dict[str, object] = {}
        if request.url is not None:
            changes["url"] = request.url
        if request.events is not None:
            changes["events"] = sorted(set(request.events))
        if request.is_enabled is False:
            changes["enabled_at"] = None
        if request.is_enabled is True and found.disabled_why is not None:
            changes["enabled_at"] = app_state.now()
        if changes:
            webhooks.change(connection, found.id, **changes)
        return webhook_view(find_webhook(connection, user, webhook))


@router.delete(
    "/{webhook}",
    response_model=WebhookView,
    responses={200: {"headers": REPLAYED_HEADER}},
    openapi_extra=answers_problems("not_found"),
)
def delete_webhook(
    app_state: State, user: Admin, webhook: str, idempotent: IdempotentRequestDep
) -> Response:
    """Delete a webhook with all its deliveries, and show it for the last time."""
    return idempotent.run_once(app_state, partial(remove_webhook, user, webhook))


@router.post(
    "/{webhook}/actions/test",
    status_code=202,
    response_model=DeliveryView,
    responses=REPLAYABLE,
    openapi_extra=answers_problems("not_found"),
)
def test_webhook(
    app_state: State, user: Admin, webhook: str, idempotent: IdempotentRequestDep
) -> Response:
    """Send one test, even while the webhook is disabled; its delivery says what became of it."""
    return idempotent.run_once(app_state, partial(store_test, app_state, user, webhook))


@router.post(
    "/{webhook}/actions/rotate",
    response_model=WebhookView,
    responses={200: {"headers": REPLAYED_HEADER}},
    openapi_extra=answers_problems("not_found"),
)
def rotate_webhook(
    app_state: State,
    user: Admin,
    keys: SigningKeys,
    webhook: str,
    idempotent: IdempotentRequestDep,
) -> Response:
    """Replace the secret of a webhook; for a day, the one before signs as well."""
    effect = partial(store_rotation, app_state, user, webhook)
    return with_secret(idempotent.run_once(app_state, effect), keys)


@router.get(
    "/{webhook}/deliveries",
    responses=page_responses("list_deliveries", webhook="$request.path.webhook"),
    openapi_extra=answers_problems("not_found"),
)
def list_deliveries(app_state: State, user: Admin, page: Page, webhook: str) -> DeliveryList:
    """List what was sent to a webhook, newest first."""
    name = f"deliveries of {webhook}"
    before = page.number(name)
    with app_state.engine.connect() as connection:
        found = find_webhook(connection, user, webhook)
        rows = webhooks.deliveries_before(connection, found.id, before, page.limit + 1)
    shown, following = page.split(name, rows, lambda last: (last.number,))
    return DeliveryList(deliveries=[delivery_view(each) for each in shown], next_cursor=following)


@router.post(
    "/{webhook}/deliveries/{delivery}/actions/replay",
    status_code=202,
    response_model=DeliveryView,
    responses=REPLAYABLE,
    openapi_extra=answers_problems("not_found"),
)
def replay_delivery(
    app_state: State,
    user: Admin,
    webhook: str,
    delivery: str,
    idempotent: IdempotentRequestDep,
) -> Response:
    """Send an event once more, under the same id, with as many tries as at first."""
    effect = partial(store_replay, app_state, user, webhook, delivery)
    return idempotent.run_once(app_state, effect)


def store_webhook(
    app_state: AppState,
    user: UserPrincipal,
    project: str,
    request: WebhookRequest,
    connection: Connection,
) -> StoredAnswer:
    """Store a webhook, and return the answer that shows it without its secret."""
    if webhooks.count_in_project(connection, project) >= MAX_WEBHOOKS_PER_PROJECT:
        most = f"the project has {MAX_WEBHOOKS_PER_PROJECT} webhooks, as many as it may"
        raise ApiProblem("validation", f"{most}: delete one, or change its address")
    now = app_state.now()
    webhook = StoredWebhook(
        id=f"whk_{secrets.token_hex(8)}",
        project=project,
        url=request.url,
        kind=request.kind,
        events=tuple(sorted(set(request.events or NOTABLE_EVENTS))),
        created_at=now,
        created_by=user.token,
        enabled_at=now,
    )
    webhooks.create(connection, webhook)
    content = webhook_view(webhook).model_dump_json()
    return StoredAnswer(201, content, {"Location": f"/v1/webhooks/{webhook.id}"})


def store_rotation(
    app_state: AppState, user: UserPrincipal, webhook: str, connection: Connection
) -> StoredAnswer:
    """Store that a secret is replaced, and return the answer that shows the webhook."""
    found = find_webhook(connection, user, webhook)
    if found.kind is WebhookKind.SLACK:
        raise ApiProblem(
            "validation",
            "Slack checks no signature, so there is no secret: make a new address at Slack, and "
            f"send it with PATCH /v1/webhooks/{found.id}",
        )
    webhooks.rotate(connection, found.id, app_state.now())
    return StoredAnswer(
        200, webhook_view(find_webhook(connection, user, webhook)).model_dump_json(), {}
    )


def remove_webhook(user: UserPrincipal, webhook: str, connection: Connection) -> StoredAnswer:
    """Delete a webhook, and return the answer that shows it."""
    found = find_webhook(connection, user, webhook)
    webhooks.remove(connection, found.id)
    return StoredAnswer(200, webhook_view(found).model_dump_json(), {})


def store_test(
    app_state: AppState, user: UserPrincipal, webhook: str, connection: Connection
) -> StoredAnswer:
    """Store a test to be sent, and return the answer that shows its delivery."""
    found = find_webhook(connection, user, webhook)
    delivery = webhooks.request_delivery(connection, found.id, app_state.now())
    return StoredAnswer(202, delivery_view(delivery).model_dump_json(), {})


def store_replay(
    app_state: AppState, user: UserPrincipal, webhook: str, delivery: str, connection: Connection
) -> StoredAnswer:
    """Store that an event is sent once more, and return the answer that shows the delivery."""
    found = find_webhook(connection, user, webhook)
    is_number = DELIVERY_NUMBER_PATTERN.fullmatch(delivery)
    sent = webhooks.find_delivery(connection, found.id, int(delivery)) if is_number else None
    if sent is None:
        where = f"GET /v1/webhooks/{found.id}/deliveries lists them"
        raise ApiProblem("not_found", f"the webhook has no delivery of that number; {where}")
    if sent.event is None:
        raise ApiProblem("validation", "this was a test: send another with actions/test")
    if found.disabled_why is not None:
        remedy = 'switch it on with PATCH and {"is_enabled": true}'
        raise ApiProblem("validation", f"the webhook is off: {found.disabled_why}; {remedy}")
    again = webhooks.request_delivery(connection, found.id, app_state.now(), sent)
    return StoredAnswer(202, delivery_view(again).model_dump_json(), {})


def with_secret(response: Response, keys: ControllerKeys) -> Response:
    """Return an answer with the secret in it, which is derived and stored nowhere.

    The answer that is stored for a repetition of the request has none.
    """
    view = WebhookView.model_validate_json(bytes(response.body))
    if view.kind is WebhookKind.SLACK:
        return response
    secret = text_of_secret(keys.webhook_secret(view.id, view.rotations))
    headers = {
        name: value
        for name, value in response.headers.items()
        if name not in ("content-length", "content-type")
    }
    content = view.model_copy(update={"secret": secret}).model_dump_json()
    return Response(content, response.status_code, headers, media_type="application/json")


def find_webhook(connection: Connection, user: UserPrincipal, webhook: str) -> StoredWebhook:
    """Return a webhook of the user's project; one of another does not exist for them."""
    found = webhooks.find(connection, webhook) if WEBHOOK_ID_PATTERN.fullmatch(webhook) else None
    if found is None or not user.sees(found.project):
        raise ApiProblem("not_found", NO_SUCH_WEBHOOK)
    return found


def webhook_view(webhook: StoredWebhook) -> WebhookView:
    """Return a webhook as the API shows it."""
    return WebhookView(
        id=webhook.id,
        url=webhook.url,
        kind=webhook.kind,
        events=list(webhook.events),
        project=webhook.project,
        is_enabled=webhook.disabled_why is None,
        created_at=webhook.created_at,
        disabled_why=webhook.disabled_why,
        rotations=webhook.rotations,
    )


def delivery_view(delivery: StoredDelivery) -> DeliveryView:
    """Return a delivery as the API shows it."""
    view = DeliveryView.model_validate(delivery)
    if view.state is DeliveryState.WAITING:
        return view
    return view.model_copy(update={"next_try_at": None})
