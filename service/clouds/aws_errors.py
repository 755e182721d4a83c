"""What the error codes of AWS mean, in the controller's own words.

A launch with the same client token is safe to repeat, so an answer that may have come from between
the controller and EC2 is never taken for a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping

from service.clouds.provider import EndReason
from service.errors import (
    CloudError,
    CredentialsRefused,
    LaunchKeyUsed,
    LaunchRefused,
    MachineTypeUnsold,
    OutOfCapacity,
    ProviderUnavailable,
    QuotaReached,
    ServiceError,
    SpotRefused,
    Throttled,
)

UNAUTHORIZED = "UnauthorizedOperation"
PARAMETER_MISMATCH = "IdempotentParameterMismatch"
UNKNOWN_INSTANCE = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})

_ERRORS: Mapping[type[CloudError], tuple[str, ...]] = {
    OutOfCapacity: (
        "InsufficientCapacity",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientHostCapacity",
        "InsufficientInstanceCapacity",  # EC2 sends it with status 500, as if it had failed
        "SpotMaxPriceTooLow",
        "UnfulfillableCapacity",
    ),
    MachineTypeUnsold: ("Unsupported",),
    SpotRefused: ("AuthFailure.ServiceLinkedRoleCreationNotPermitted",),
    QuotaReached: (
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "NetworkInterfaceLimitExceeded",
        "VcpuLimitExceeded",
        "VolumeLimitExceeded",
    ),
    Throttled: (
        "EC2ThrottledException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "TooManyRequestsException",
    ),
    CredentialsRefused: (
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "Blocked",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "OptInRequired",
        "PendingVerification",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnauthorizedOperation",
        "UnrecognizedClientException",
    ),
    LaunchKeyUsed: ("IdempotentInstanceTerminated",),
    ProviderUnavailable: ("InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable"),
}
_ERROR_BY_CODE = {code: error for error, codes in _ERRORS.items() for code in codes}

_REMEDIES: Mapping[str, str] = {
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": (
        "spot machines need a role once per account; an administrator creates it with: "
        "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com"
    ),
    "ExpiredToken": "renew the controller's credentials",
    "OptInRequired": "enable the region, or subscribe to the image, in the AWS console",
    "PendingVerification": "AWS still verifies the account; it usually ends within hours",
    "RequestExpired": "renew the controller's credentials, and set this computer's clock",
    "SignatureDoesNotMatch": "correct the secret key, and set this computer's clock",
    "UnauthorizedOperation": (
        "allow it in the policy of the controller; scavenger doctor --permissions names what is "
        "missing"
    ),
    "VcpuLimitExceeded": "ask for a higher quota in the console of Service Quotas",
    "MaxSpotInstanceCountExceeded": "ask for a higher spot quota in the console of Service Quotas",
    "InsufficientFreeAddressesInSubnet": "use a larger subnet, or end other machines in it",
}

# EC2 appends kilobytes of encoded text to a refusal for want of a right.
_MESSAGE_LENGTH = 400

_END_REASONS: Mapping[str, EndReason] = {
    "Server.InsufficientInstanceCapacity": EndReason.SOLD_OUT,
    "Server.SpotInstanceShutdown": EndReason.TAKEN,
    "Server.SpotInstanceTermination": EndReason.TAKEN,
    "Server.InternalError": EndReason.FAILED,
    "Server.ScheduledStop": EndReason.FAILED,
    "Client.InternalError": EndReason.FAILED,  # mostly no right to the key of an encrypted disk
    "Client.InvalidSnapshot.NotFound": EndReason.FAILED,
    "Client.VolumeLimitExceeded": EndReason.FAILED,
}


def error_of(
    code: str, status: int, message: str, refusal: type[ServiceError] = ProviderUnavailable
) -> ServiceError:
    """Return the error that an answer of AWS stands for.

    Args:
        code: AWS's word; empty or a number where another program answered in its place.
        status: Of HTTP.
        message: What was called, and what AWS says of it.
        refusal: What it means that AWS takes the request to be wrong. Only of a launch it means
            LaunchRefused, and only to a launch places and quotas matter.
    """
    known: type[ServiceError] | None = _ERROR_BY_CODE.get(code)
    if known is None and code.startswith("Throttl"):
        known = Throttled
    if known is None:
        # A proxy's page has no code, and botocore then gives the status in its place.
        is_refusal = 400 <= status < 500 and bool(code) and not code.isdigit()
        known = LaunchRefused if is_refusal else ProviderUnavailable
    if known is LaunchRefused:
        known = refusal
    elif refusal is not LaunchRefused and known not in (CredentialsRefused, Throttled):
        known = ProviderUnavailable
    told = f"{code or f'HTTP {status}'}: {message[:_MESSAGE_LENGTH] or 'no message'}"
    remedy = _REMEDIES.get(code)
    return known(f"{told} ({remedy})" if remedy else told)


def end_reason_of(code: str | None) -> EndReason | None:
    """Return why a machine ended by itself; None where it was told to, or EC2 does not say."""
    return _END_REASONS.get(code or "")
