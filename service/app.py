"""The FastAPI application: routes, the gate before them, and errors in one language."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from scavenger.errors import Problem
from service.api import agent, checkups, deliveries, health, jobs, models, sweeps
from service.api.gate import Gate
from service.api.journal import Journal
from service.api.refusal import answer_in_problems, refuse
from service.api.vitals import Vitals
from service.api.world import World
from service.keys import Keys


def build_app(world: World, keys: Keys) -> FastAPI:
    """Put the application together."""
    app = FastAPI(title="Scavenger", version="1")
    app.state.world = world
    app.state.vitals = Vitals(world.engine, world.pulses)
    for router in (
        jobs.router,
        models.router,
        sweeps.router,
        agent.router,
        deliveries.router,
        checkups.router,
        health.router,
    ):
        app.include_router(router)

    @app.exception_handler(RequestValidationError)
    async def unusable(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = [
            Problem(".".join(str(part) for part in detail["loc"][1:]), detail["msg"])
            for detail in error.errors()
        ]
        return refuse("validation", "; ".join(str(problem) for problem in problems), problems)

    answer_in_problems(app)
    app.add_middleware(Gate, keys=keys)
    app.add_middleware(Journal)
    return app
