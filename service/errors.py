"""What can go wrong in the controller that it must handle.

::

    ScavengerError
    └── ServiceError
        ├── SecretRefused             this controller may not act here: tell the person, stop
        ├── AccountRefused            its machines are elsewhere: tell the person, stop
        ├── NotificationsUndelivered  the database delivers no notifications: tell the person, stop
        ├── UnknownCloud              no provider has the name given: tell the person, stop
        ├── PostgresUnavailable       the embedded database cannot run: tell the person, stop
        ├── BackupFailed              nothing was saved or restored: tell the person
        ├── LeaseLost                 another controller acts for this job: drop what was decided
        ├── AddressRefused            a user's address the controller does not go to: refuse it
        ├── Unanswered                nothing usable came from a user's address: try again later
        └── CloudError
            ├── OutOfCapacity         the cloud cannot start more: wait, then the same key again
            ├── ProviderUnavailable   the cloud did not answer or not yet obey: retry next tick
            └── LaunchRefused         this launch can never succeed: give up its key
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


class UnknownCloud(ServiceError):
    """The settings name a cloud that the registry does not have; the message lists the others."""


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
    """The cloud cannot start more machines now; nothing was started, so wait and repeat the key."""

    label = "capacity"


class ProviderUnavailable(CloudError):
    """The cloud did not answer, or has not yet done what it was told; retry next tick."""

    label = "unavailable"


class LaunchRefused(CloudError):
    """This launch can never succeed, its key is used up; give up and take a new key."""

    label = "refused"
