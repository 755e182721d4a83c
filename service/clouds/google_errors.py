"""What Compute Engine's error codes mean to the controller; needs no SDK.

A code is a reason of HTTP (``rateLimitExceeded``) or of an operation (``QUOTA_EXCEEDED``). Google
accepts an insert and tells only in its operation that the zone is sold out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from service.errors import (
    CloudError,
    CredentialsRefused,
    LaunchRefused,
    MachineTypeUnsold,
    OutOfCapacity,
    ProviderUnavailable,
    QuotaReached,
    Throttled,
)

_CODES: Mapping[str, type[CloudError]] = {
    "GPU_STOCKOUT": OutOfCapacity,
    "IP_SPACE_EXHAUSTED": OutOfCapacity,
    "IP_SPACE_EXHAUSTED_WITH_DETAILS": OutOfCapacity,
    "RESOURCE_POOL_EXHAUSTED": OutOfCapacity,
    "STOCKOUT": OutOfCapacity,
    "UNSUPPORTED_OPERATION": OutOfCapacity,  # a spot machine that was taken while it was created
    "ZONE_RESOURCE_POOL_EXHAUSTED": OutOfCapacity,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": OutOfCapacity,
    "QUOTA_EXCEEDED": QuotaReached,
    "quotaExceeded": QuotaReached,
    "RATE_LIMIT_EXCEEDED": Throttled,
    "RESOURCE_OPERATION_RATE_EXCEEDED": Throttled,
    "rateLimitExceeded": Throttled,
    "userRateLimitExceeded": Throttled,
    "backendError": ProviderUnavailable,
    "resourceNotReady": ProviderUnavailable,  # told with 400
}
# Google names the field that it refuses: this one where a zone has no such type.
_TYPE_FIELD = "resource.machineType"
_REMEDY = (
    "check the credentials and the role of the controller's account with scavenger doctor "
    "--permissions"
)


def launch_error(codes: Collection[str], status: int | None, message: str) -> CloudError:
    """Return why an insert was not accepted.

    Args:
        codes: All that the answer names; the first known one counts.
        status: Of HTTP.
        message: What Google says.
    """
    match status:
        case 401 | 403:
            otherwise: type[CloudError] = CredentialsRefused
        case 429:
            otherwise = Throttled
        case 400 | 404 if _TYPE_FIELD in message:
            otherwise = MachineTypeUnsold
        case int() if 400 <= status < 500 and status != 408:
            otherwise = LaunchRefused
        case _:
            otherwise = ProviderUnavailable
    return _choose(codes, otherwise, message)


def operation_error(codes: Collection[str], status: int | None, message: str) -> CloudError:
    """Return why an accepted insert failed: nothing came of it, which is certain.

    An error that is not known uses the key up, since its request id only shows this failure again.
    """
    match status:
        case 401 | 403:
            otherwise: type[CloudError] = CredentialsRefused
        case 429:
            otherwise = Throttled
        case 503:
            otherwise = OutOfCapacity
        case _:
            otherwise = LaunchRefused
    error = _choose(codes, otherwise, message)
    return LaunchRefused(str(error)) if isinstance(error, ProviderUnavailable) else error


def call_error(codes: Collection[str], status: int | None, message: str) -> CloudError:
    """Return why a list or a delete failed."""
    otherwise: type[CloudError] = ProviderUnavailable
    if status in (401, 403):
        otherwise = CredentialsRefused
    if status == 429:
        otherwise = Throttled
    error = _choose(codes, otherwise, message)
    return error if isinstance(error, otherwise | Throttled) else ProviderUnavailable(str(error))


def _choose(codes: Collection[str], otherwise: type[CloudError], message: str) -> CloudError:
    meaning = next((_CODES[code] for code in codes if code in _CODES), otherwise)
    named = f"{message} ({', '.join(codes)})" if codes else message
    return meaning(f"{named}; {_REMEDY}" if meaning is CredentialsRefused else named)


def unknown_error(codes: list[str], status: int | None, message: str) -> CloudError:
    """Say that nothing is known, because an insert was accepted before."""
    return ProviderUnavailable(message)


def zones_with_room(metadata: Mapping[str, str]) -> list[str]:
    """Return what a stockout says of other zones."""
    zones = metadata.get("zonesAvailable")
    return [f"zones with room: {zones}"] if zones else []
