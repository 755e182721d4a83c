"""What can go wrong in the controller that it must handle.

::

    ScavengerError
    └── ServiceError
        ├── SecretRefused             this controller may not act here: tell the person, stop
        ├── AccountRefused            its machines are elsewhere: tell the person, stop
        ├── NotificationsUndelivered  the database delivers no notifications: tell the person, stop
        ├── CloudsFileRefused         the clouds file cannot be used: tell the person, stop
        ├── UnknownCloud              a job names no cloud of this controller: refuse it
        ├── UnknownPrice             no price of this machine is known: refuse its job
        ├── HomeUnusable              its data directory cannot be made: tell the person, stop
        ├── PostgresUnavailable       the embedded database cannot run: tell the person, stop
        ├── BackupFailed              nothing was saved or restored: tell the person
        ├── LeaseLost                 another controller acts for this job: drop what was decided
        ├── AddressRefused            a user's address the controller does not go to: refuse it
        ├── Unanswered                nothing usable came from a user's address: try again later
        └── CloudError
            ├── OutOfCapacity         the place has no such machine: another key, another place
            │   └── MachineTypeUnsold     it never has: do not ask there for a day
            ├── QuotaReached          the account may have no more: another key, another market
            ├── CredentialsRefused    the controller may not do this: a person must act
            │   └── SpotRefused           nor rent spot machines: the other market may do
            ├── Throttled             nothing was done: ask again, more slowly
            ├── ProviderUnavailable   the cloud did not answer or not yet obey: retry next tick
            └── LaunchRefused         this launch can never succeed: give up its key
                └── LaunchKeyUsed     its machine existed, and has ended
"""

from __future__ import annotations

from scavenger.errors import ScavengerError


class ServiceError(ScavengerError):
    """Root of everything the controller raises on purpose.

    One that ends the program does so with its ``exit_code``, after its ``headline`` is shown.
    """


class SecretRefused(ServiceError):
    """The secret of this controller cannot be used; the message says why, and what to do."""


class AccountRefused(ServiceError):
    """The machines of this controller are not where those of the others are; the message helps."""


class NotificationsUndelivered(ServiceError):
    """The database does not deliver notifications; the message says what to do."""


class CloudsFileRefused(ServiceError):
    """The clouds file cannot be used; the message names each line and what to write instead."""


class UnknownCloud(ServiceError):
    """A job document names no cloud of this controller; the message lists those it has."""


class UnknownPrice(ServiceError):
    """No price is known of what a job needs; the message says what to import."""


class HomeUnusable(ServiceError):
    """The data directory cannot be made; name one that the user may write to."""


class PostgresUnavailable(ServiceError):
    """The embedded database cannot run; the message says why and what the person should do."""

    @property
    def headline(self) -> str:
        return f"the database cannot run: {self}"


class BackupFailed(ServiceError):
    """Nothing was saved or restored; the message says why and what the person should do."""


class LeaseLost(ServiceError):
    """Another controller acts for this job now; throw away what was decided, and go on."""


class AddressRefused(ServiceError):
    """The controller never connects to this address; refuse the request that names it."""


class Unanswered(ServiceError):
    """Nothing usable came back from an address that a user chose; try again later."""


class CloudError(ServiceError):
    """A cloud did not do what was asked.

    Attributes:
        label: What metrics and events call it; few words, so that metrics stay small.
    """

    label = "error"


class OutOfCapacity(CloudError):
    """The place has no such machine now and started none; ask elsewhere, by another key."""

    label = "capacity"


class MachineTypeUnsold(OutOfCapacity):
    """The place does not sell machines of this type; ask elsewhere, and not here for a day."""

    label = "unsold"


class QuotaReached(CloudError):
    """The account may have no more machines in this region and market; this call started none."""

    label = "quota"


class CredentialsRefused(CloudError):
    """The cloud does not let the controller do this; nothing was done, and a person must act."""

    label = "credentials"


class SpotRefused(CredentialsRefused):
    """The account may not rent spot machines yet; nothing was done, and a person must act."""

    label = "spot"


class Throttled(CloudError):
    """The cloud wants to be asked more slowly; nothing was done, so repeat it later."""

    label = "throttled"


class ProviderUnavailable(CloudError):
    """The cloud did not answer, or has not yet done what it was told; retry next tick."""

    label = "unavailable"


class LaunchRefused(CloudError):
    """This launch can never succeed, its key is used up; give up and take a new key."""

    label = "refused"


class LaunchKeyUsed(LaunchRefused):
    """The machine of this launch key existed, and is ending or gone; it has cost something."""

    label = "used"
