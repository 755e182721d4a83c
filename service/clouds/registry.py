"""The clouds a controller can use: one line each. Nothing else names a provider."""

from __future__ import annotations

from collections.abc import Callable

from service.clouds.local import LocalProvider
from service.clouds.provider import Provider
from service.errors import UnknownCloud
from service.settings import Settings

CLOUDS: dict[str, Callable[[Settings], Provider]] = {
    "local": LocalProvider.from_settings,
}


def open_cloud(settings: Settings) -> Provider:
    """Return the provider that the settings name.

    Raises:
        UnknownCloud: The registry has no such cloud; the message lists those it has.
    """
    if settings.cloud not in CLOUDS:
        raise UnknownCloud(f"there is no cloud {settings.cloud!r}: choose {' or '.join(CLOUDS)}")
    return CLOUDS[settings.cloud](settings)
