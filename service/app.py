"""The FastAPI application: routes, the gate before them, and errors in one language."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from scavenger.errors import Problem
from service.api import agent, deliveries, jobs, models, sweeps
from service.api.cursors import Cursors
from service.api.description import describe
from service.api.gate import Gate
from service.api.refusal import answer_in_problems, refuse
from service.api.world import World
from service.keys import Keys


def build_app(world: World, keys: Keys) -> FastAPI:
    """Put the application together."""
    app = FastAPI(
        title="Scavenger",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.world, app.state.cursors = world, Cursors(keys.cursors())
    for router in (
        jobs.router,
        models.router,
        sweeps.router,
        agent.router,
        deliveries.router,
    ):
        app.include_router(router)

    @app.get("/healthz")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.exception_handler(RequestValidationError)
    async def unusable(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = [
            Problem(".".join(str(part) for part in detail["loc"][1:]), detail["msg"])
            for detail in error.errors()
        ]
        return refuse("validation", "; ".join(str(problem) for problem in problems), problems)

    answer_in_problems(app)
    describe(app)
    app.add_middleware(Gate, keys=keys)
    return app
