"""Turns the description of a request into a method of both clients.

``Client`` returns what ``AsyncClient`` returns when awaited, or iterated with ``async for``. Each
method is described once, so that neither client has an argument or a default that the other lacks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import update_wrapper, wraps
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Self, overload

from scavenger.client.core import (
    AgreedT,
    ApiRequest,
    Conversation,
    ListedT,
    Listing,
    ViewT,
    send,
)
from scavenger.client.drivers import AwaitingDriver, BlockingDriver

ParametersT = ParamSpec("ParametersT")


class ConversationMethod(Generic[ParametersT, AgreedT]):
    """A method of both clients that has one result."""

    def __init__(
        self, describe: Callable[Concatenate[Any, ParametersT], Conversation[AgreedT]]
    ) -> None:
        self.describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: BlockingDriver, owner: type) -> Callable[ParametersT, AgreedT]: ...
    @overload
    def __get__(
        self, client: AwaitingDriver, owner: type
    ) -> Callable[ParametersT, Awaitable[AgreedT]]: ...
    def __get__(self, client: BlockingDriver | AwaitingDriver | None, owner: type) -> Any:
        if client is None:
            return self
        return bind(self.describe, client, client.converse)


class ListingMethod(Generic[ParametersT, ListedT]):
    """A method of both clients that yields items."""

    def __init__(self, describe: Callable[Concatenate[Any, ParametersT], Listing[ListedT]]) -> None:
        self.describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(
        self, client: BlockingDriver, owner: type
    ) -> Callable[ParametersT, Iterator[ListedT]]: ...
    @overload
    def __get__(
        self, client: AwaitingDriver, owner: type
    ) -> Callable[ParametersT, AsyncIterator[ListedT]]: ...
    def __get__(self, client: BlockingDriver | AwaitingDriver | None, owner: type) -> Any:
        if client is None:
            return self
        return bind(self.describe, client, client.iterate)


def one_request(
    describe: Callable[Concatenate[Any, ParametersT], ApiRequest[ViewT]],
) -> ConversationMethod[ParametersT, ViewT]:
    """Make a method of a function that returns the request; the method returns its answer."""

    @wraps(describe)
    def converse(
        client: Any, /, *arguments: ParametersT.args, **options: ParametersT.kwargs
    ) -> Conversation[ViewT]:
        return send(describe(client, *arguments, **options))

    return ConversationMethod(converse)


def conversation(
    describe: Callable[Concatenate[Any, ParametersT], Conversation[AgreedT]],
) -> ConversationMethod[ParametersT, AgreedT]:
    """Make a method of a generator of steps; the method returns what the generator returns."""
    return ConversationMethod(describe)


def listing(
    describe: Callable[Concatenate[Any, ParametersT], Listing[ListedT]],
) -> ListingMethod[ParametersT, ListedT]:
    """Make a method of a generator of steps and items; the method yields the items."""
    return ListingMethod(describe)


def bind(
    describe: Callable[..., Any], client: BlockingDriver | AwaitingDriver, carry_out: Any
) -> Callable[..., Any]:
    """Return a method of one client, with the signature and the docstring of its description."""

    def method(*arguments: Any, **options: Any) -> Any:
        return carry_out(describe(client, *arguments, **options))

    update_wrapper(method, describe)
    method.__wrapped__ = MethodType(describe, client)  # type: ignore[attr-defined]
    return method
