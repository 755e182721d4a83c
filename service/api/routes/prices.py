"""Prices of what clouds rent out: list them, and import others."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from sqlalchemy import Connection

from scavenger.schemas.prices import PriceImportView, PriceList, PriceRow
from service.api.dependencies import AppState, State
from service.api.idempotency import IdempotentRequestDep
from service.api.openapi import REPLAYED_HEADER, page_responses
from service.api.pagination import Page
from service.api.security import INSTALLATION_ADMIN, VIEWER, GuardedRoute
from service.db import prices
from service.db.idempotency import StoredAnswer
from service.prices import PriceKey, key_of, to_price

router = APIRouter(prefix="/v1/prices", tags=["prices"], route_class=GuardedRoute)

PRICE_POSITION: TypeAdapter[PriceKey] = TypeAdapter(PriceKey)


class PriceImport(BaseModel):
    """Rows of a price table."""

    model_config = ConfigDict(extra="forbid")

    prices: Annotated[list[PriceRow], Field(min_length=1, max_length=2000)]


@router.get("", responses=page_responses("list_prices"), dependencies=[VIEWER])
def list_prices(app_state: State, page: Page) -> PriceList:
    """List the prices that the controller plans with, by provider, region and item."""
    after = page.position("prices", PRICE_POSITION)
    with app_state.engine.connect() as connection:
        found = prices.page_of_prices(connection, after, page.limit + 1)
    shown, following = page.split("prices", found, key_of)
    return PriceList(prices=list(shown), next_cursor=following)


@router.post(
    "",
    response_model=PriceImportView,
    responses={200: {"headers": REPLAYED_HEADER}},
    dependencies=[INSTALLATION_ADMIN],
)
def import_prices(
    app_state: State, request: PriceImport, idempotent: IdempotentRequestDep
) -> Response:
    """Import prices; those that are not believed are named, and the others hold from now on."""
    return idempotent.run_once(app_state, partial(store_import, app_state, request.prices))


def store_import(app_state: AppState, rows: list[PriceRow], connection: Connection) -> StoredAnswer:
    """Store an import, and return the answer that says what became of it."""
    now = app_state.now()
    told = [to_price(row, "imported", now) for row in rows]
    update = prices.store_prices(connection, told, now)
    view = PriceImportView(accepted=len(update.accepted), refused=list(update.refused))
    return StoredAnswer(200, view.model_dump_json(), {})
