"""Settings: how one fake cloud behaves when nothing goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.fakecloud.bill import Tariff
from tests.fakecloud.spot import SpotPrices

PLAIN = Tariff(price_per_hour=0.5)


@dataclass(frozen=True, slots=True)
class Settings:
    """One cloud's manners.

    Attributes:
        seed: Of everything drawn; a cloud asked the same at the same times answers the same.
        tariffs: What it has, and at which price, by machine type.
        capacity: Machines there are at once, by ``type@zone`` or ``type@zone+spot``; a place not
            named has no end.
        quota: Machines this account may have at once; None for any number.
        quotas: The same by market.
        has_zonal_tokens: Whether a token that is used in another zone starts another machine.
        spot: How the prices of the spot market move.
        list_lag: What is shown of a machine is up to so many seconds old.
        lags_in_lists_only: Whether calls about one machine show it as it is.
        boot: Seconds until a machine runs.
        ending: Seconds from the end of its run until a machine is gone.
        memory: Seconds a machine that is gone is still shown; 0 where it is simply absent then.
        are_tokens_free_again: Whether a token may make a second machine once its first is gone.
        lateness: Seconds by which the cloud may be late to end a machine by itself.
        requests_per_second: Pace at which it lets itself be asked; None for any.
        burst: Requests it takes at once before that pace matters.
        page: Most machines on one page of a list.
    """

    seed: int = 0
    tariffs: Mapping[str, Tariff] = field(default_factory=lambda: {"small": PLAIN})
    capacity: Mapping[str, int] = field(default_factory=dict)
    quota: int | None = None
    quotas: Mapping[str, int] = field(default_factory=dict)
    has_zonal_tokens: bool = False
    spot: SpotPrices = field(default_factory=SpotPrices)
    list_lag: float = 0.0
    lags_in_lists_only: bool = False
    boot: float = 30.0
    ending: float = 10.0
    memory: float = 3600.0
    are_tokens_free_again: bool = False
    lateness: float = 30.0
    requests_per_second: float | None = None
    burst: int = 10
    page: int = 100
