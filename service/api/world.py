"""World: what endpoints need of the controller, handed to them by FastAPI."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy import Engine
from starlette.requests import ClientDisconnect

from service.api.refusal import Refusal
from service.caller import Machine, Newcomer, Person
from service.db import clock
from service.keys import Keys
from service.pulse import Pulse
from service.storage import Storage
from service.vault import NO_SECRETS, Vault


@dataclass(frozen=True, slots=True)
class World:
    """What endpoints need of the controller.

    Attributes:
        machine: Name of the machines jobs run on, part of a model's signature.
        storage: Where machines keep what outlives them.
        nudge: Hints to the reconciler that there is news; it would look soon anyway.
        pulses: Of the parts of this controller that go round, by name.
        boot: Seconds a machine may take to come up.
        vault: The secrets of jobs.
    """

    engine: Engine
    machine: str
    storage: Storage
    nudge: Callable[[], None]
    pulses: Mapping[str, Pulse] = field(default_factory=dict)
    boot: float = 0.0
    vault: Vault = NO_SECRETS

    def now(self) -> datetime:
        """Return the present moment, the same on every computer that has this database."""
        return clock.now(self.engine)


def world_of(request: Request) -> World:
    """Return the world of the application that was asked."""
    world = request.app.state.world
    assert isinstance(world, World)
    return world


async def body_of(request: Request) -> bytes:
    """Return the body as it came; nobody hears the answer to one that ended too soon."""
    try:
        return await request.body()
    except ClientDisconnect:
        raise Refusal("validation", "the body ended before its end") from None


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


def newcomer_of(request: Request) -> str:
    """Return the worker a machine that just came up was launched as."""
    caller = request.scope["caller"]
    assert isinstance(caller, Newcomer)
    return caller.worker


def keys_of(request: Request) -> Keys:
    """Return the keys of the application that was asked."""
    keys = request.app.state.keys
    assert isinstance(keys, Keys)
    return keys


Here = Annotated[World, Depends(world_of)]
Body = Annotated[bytes, Depends(body_of)]
Speaker = Annotated[str, Depends(worker_of)]
Asker = Annotated[Person, Depends(asker_of)]
Fresh = Annotated[str, Depends(newcomer_of)]
Keychain = Annotated[Keys, Depends(keys_of)]
