"""The clouds file: which accounts and regions a controller rents machines in.

A provider is one line in ``PROVIDERS``; nothing else names one. Its module is imported when an
entry of the file asks for it, so that a controller loads no SDK that it does not use.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from scavenger.errors import InvalidDocument
from scavenger.job.messages import show_value
from scavenger.job.parser import DocumentPath, Positions, problem_at, scan_yaml
from scavenger.job.validation import expected_words
from service.clouds.clouds import Clouds
from service.clouds.object_store import BucketEntry
from service.clouds.provider import Provider
from service.errors import CloudsFileRefused, CredentialsRefused
from service.settings import Settings

PROVIDERS: dict[str, str] = {
    "local": "service.clouds.local:LocalProvider",
    "aws": "service.clouds.aws:AwsProvider",
    "google": "service.clouds.google:GoogleProvider",
}

BUCKET_KEY = "checkpoints"
NAME_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,40}")
CREDENTIAL = re.compile("secret|token|passw|credential|access_?key|private_?key|key_?id", re.I)
CREDENTIALS_ADVICE = (
    "credentials do not belong in this file: delete the line; the cloud's SDK finds them in "
    "environment variables, its own files, or the computer's role"
)
EXAMPLE = "clouds: {aws-frankfurt: {provider: aws, region: eu-central-1, …}}"


class ProviderClass(Protocol):
    """What the registry needs of the class of a provider.

    Attributes:
        Entry: Model of its entries in the clouds file, without ``provider``.
    """

    Entry: type[BaseModel]

    def open(self, name: str, entry: Any, settings: Settings) -> Provider:
        """Return the provider of an entry; asks no cloud."""


def open_clouds(settings: Settings) -> Clouds:
    """Return the clouds of the clouds file; without a file, this computer.

    Raises:
        CloudsFileRefused: The file cannot be used; the message names line and remedy.
    """
    if settings.clouds is None:
        return Clouds([open_entry("local", "local", {}, settings)])
    return Clouds(read_clouds_file(settings.clouds, settings))


def read_clouds_file(path: Path, settings: Settings) -> list[Provider]:
    """Open every entry of a clouds file."""
    try:
        document = scan_yaml(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise CloudsFileRefused(f"{path} cannot be read: {error}") from error
    except InvalidDocument as error:
        raise CloudsFileRefused(f"{path} cannot be used:\n{error}") from error
    problems = [str(problem) for problem in document.problems]
    problems += [
        str(problem_at(where, what, document.positions))
        for where, what in find_problems(document.value)
    ]
    if problems:
        raise CloudsFileRefused("\n".join([f"{path} cannot be used:", *problems]))
    assert isinstance(document.value, dict)
    opened: list[Provider] = []
    for name, entry in document.value["clouds"].items():
        settled = {key: value for key, value in entry.items() if key != "provider"}
        try:
            opened.append(open_entry(name, entry["provider"], settled, settings))
        except ValidationError as error:
            found = entry_problems(name, entry["provider"], error, document.positions)
            raise CloudsFileRefused("\n".join([f"{path} cannot be used:", *found])) from error
        except (CloudsFileRefused, CredentialsRefused) as error:
            where = problem_at(("clouds", name), str(error), document.positions)
            raise CloudsFileRefused(f"{path} cannot be used:\n{where}") from error
    return opened


def find_problems(value: object) -> Iterator[tuple[DocumentPath, str]]:
    """Yield what is wrong with a clouds file that no provider could accept."""
    clouds = value.get("clouds") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(clouds, dict) or not clouds:
        yield (), f"names no cloud: write e.g. {EXAMPLE}"
        return
    yield from (
        ((key,), f"unknown key {show_value(key)}: the only key here is clouds")
        for key in value
        if key != "clouds"
    )
    for name, entry in clouds.items():
        where = ("clouds", name)
        if not (isinstance(name, str) and NAME_PATTERN.fullmatch(name)):
            yield where, f"{show_value(name)} is no name: write lower-case letters, digits and -"
        elif not isinstance(entry, dict) or entry.get("provider") not in PROVIDERS:
            given = entry.get("provider") if isinstance(entry, dict) else entry
            known = " or ".join(PROVIDERS)
            yield where, f"provider must be {known}, got {show_value(given)}"
        else:
            for key in (key for key in entry if CREDENTIAL.search(str(key))):
                yield (*where, key), CREDENTIALS_ADVICE


def open_entry(
    name: str, provider: str, entry: Mapping[str, object], settings: Settings
) -> Provider:
    """Open one entry.

    Raises:
        ValidationError: The provider does not accept it.
        CloudsFileRefused: The provider's SDK is not installed, or it finds another fault.
    """
    try:
        found: ProviderClass = pkgutil.resolve_name(PROVIDERS[provider])
    except ModuleNotFoundError as error:
        if str(error.name).startswith("service"):
            raise
        raise CloudsFileRefused(
            f"provider {provider} needs {error.name}, which is not installed: run "
            f"pip install 'scavenger[{provider}]'"
        ) from error
    return found.open(name, found.Entry.model_validate(entry), settings)


def entry_problems(
    name: str, provider: str, error: ValidationError, positions: Positions
) -> Iterable[str]:
    """Yield what a provider does not accept of its entry, each with line and remedy."""
    for each in error.errors(include_url=False):
        path: DocumentPath = ("clouds", name, *each["loc"])
        model: type[BaseModel] = pkgutil.resolve_name(PROVIDERS[provider]).Entry
        keys = f"the keys of provider {provider} are provider, {keys_of(model)}"
        if each["loc"][:1] == (BUCKET_KEY,):  # a flaw of the whole entry has no place
            keys = f"the keys of a bucket are {keys_of(BucketEntry)}"
            model = BucketEntry if len(each["loc"]) > 1 else model
        match each["type"]:
            case "extra_forbidden":
                what = f"unknown key: {keys}"
            case "missing":
                what = f"is missing: {keys}"
            case "model_type":
                what = f"must be a mapping, got {show_value(each['input'])}: {keys}"
            case "value_error":
                what = str(each["ctx"]["error"])
            case kind:
                named = each["loc"][1 if model is BucketEntry else 0]
                value, said = show_value(each["input"]), model.model_fields[str(named)].description
                what = f"{value} does not fit: {said}"
                if kind.endswith(("_type", "_parsing")) or kind.startswith(("greater", "less")):
                    wanted = expected_words(kind, each.get("ctx", {}))
                    what = f"must be {wanted}, got {value}: {said}"
        yield str(problem_at(path, what, positions))


def keys_of(model: type[BaseModel]) -> str:
    """Return the keys that the documentation knows."""
    return ", ".join(key for key, field in model.model_fields.items() if not field.exclude)
