"""World: what endpoints need of the controller, handed to them by FastAPI."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy import Engine

from service.caller import Machine, Person
from service.pulse import Pulse
from service.storage import Storage


@dataclass(frozen=True, slots=True)
class World:
    """What endpoints need of the controller.

    Attributes:
        machine: Name of the machines jobs run on, part of a model's signature.
        storage: Where machines keep what outlives them.
        nudge: Hints to the reconciler that there is news; it would look soon anyway.
        pulses: Of the parts of this controller that go round, by name.
    """

    engine: Engine
    machine: str
    storage: Storage
    nudge: Callable[[], None]
    pulses: Mapping[str, Pulse] = field(default_factory=dict)

    def now(self) -> datetime:
        """Return the present moment."""
        return datetime.now(UTC)


def world_of(request: Request) -> World:
    """Return the world of the application that was asked."""
    world = request.app.state.world
    assert isinstance(world, World)
    return world


async def body_of(request: Request) -> bytes:
    """Return the body as it came."""
    return await request.body()


def worker_of(request: Request) -> str:
    """Return the worker a machine's token names."""
    caller = request.scope["caller"]
    assert isinstance(caller, Machine)
    return caller.worker


def asker_of(request: Request) -> Person:
    """Return the person who asks."""
    caller = request.scope["caller"]
    assert isinstance(caller, Person)
    return caller


Here = Annotated[World, Depends(world_of)]
Body = Annotated[bytes, Depends(body_of)]
Speaker = Annotated[str, Depends(worker_of)]
Asker = Annotated[Person, Depends(asker_of)]
