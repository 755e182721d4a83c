"""``python -m service.clouds.doctor``: which rights the clouds of a clouds file grant.

The program behind ``scavenger doctor --permissions``: it asks with the credentials that a
controller on this computer would have, and prints checks as JSON. It starts and ends no machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version

from pydantic import ValidationError
from pydantic_settings import SettingsConfigDict

from scavenger.client.diagnostics import failed_check, passed_check, warning_check
from scavenger.schemas.diagnostics import CheckView, DiagnosticsView
from service.clouds.object_store import HasObjectStore, ObjectStore
from service.clouds.provider import Provider
from service.clouds.registry import open_clouds
from service.clouds.rights import Right, RightsSource
from service.errors import CloudError, CloudsFileRefused, CredentialsRefused, ServiceError
from service.settings import Settings

_PROBE_NAME, _PROBE_DIGEST = "doctor", "0" * 64


class RightsCommand(Settings):
    """What is to be asked, beside the controller's own settings.

    Attributes:
        owner: Id of the installation; empty if not known.
    """

    model_config = SettingsConfigDict(cli_prog_name="scavenger doctor --permissions")

    owner: str = ""


def main() -> int:
    """Print the checks of all clouds; returns the exit code."""
    try:
        order = RightsCommand(_cli_parse_args=True)
        clouds = open_clouds(order)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors()]
        print("\n".join(["these settings cannot be used:", *problems]), file=sys.stderr)
        return 2
    except ServiceError as error:
        print(error.headline, file=sys.stderr)
        return error.exit_code
    checks = [check for provider in clouds for check in check_provider(provider, order.owner)]
    if order.clouds is None:
        checks.append(warning_check("clouds", "no clouds file is named", "pass --clouds FILE"))
    found = DiagnosticsView(version=version("scavenger"), at=datetime.now(UTC), checks=checks)
    print(found.model_dump_json())
    return 0


def check_provider(provider: Provider, owner: str) -> Iterator[CheckView]:
    """Yield a check for each right of an entry of the clouds file."""
    name = provider.name
    if not isinstance(provider, RightsSource):
        yield passed_check(name, "machines are processes of this computer: no right is needed")
        return
    try:
        for right in provider.check_rights(owner):
            yield check_of_right(name, right)
        yield passed_check(name, f"the entry leads to {provider.account}")
    except (CloudError, CloudsFileRefused) as error:
        yield failed_check(name, str(error), remedy_of(error))
        return
    if isinstance(provider, HasObjectStore) and provider.object_store is not None:
        yield check_bucket(name, provider.object_store)


def check_of_right(cloud: str, right: Right) -> CheckView:
    """Return what the doctor says of one right."""
    name = f"{cloud} {right.name}"
    match right.is_granted:
        case True:
            return passed_check(name, f"granted: {right.purpose}")
        case False:
            return failed_check(name, f"missing: {right.purpose}", right.remedy)
        case None:
            return warning_check(name, f"not known: {right.purpose}", right.remedy)


def check_bucket(cloud: str, store: ObjectStore) -> CheckView:
    """Check that objects of a bucket may be read; writing has no dry run."""
    name = f"{cloud} {store.url}"
    try:
        store.holds(_PROBE_NAME, 0, _PROBE_DIGEST)
    except CloudError as error:
        return failed_check(name, str(error), remedy_of(error))
    return passed_check(name, "may be read; the first checkpoint shows whether it may be written")


def remedy_of(error: ServiceError) -> str:
    """Return what to do next where a cloud gave no answer about its rights."""
    match error:
        case CredentialsRefused():
            return "correct the credentials that the SDK finds on this computer, and ask again"
        case CloudsFileRefused():
            return "correct the entry in the clouds file, and ask again"
        case _:
            return "check the network and the region of the entry, and ask again"


if __name__ == "__main__":
    sys.exit(main())
