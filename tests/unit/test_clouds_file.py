"""The clouds file: what opens it, and what a person reads where it is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

from service.clouds.aws_entry import AwsEntry
from service.clouds.clouds import Clouds
from service.clouds.google_entry import GoogleEntry
from service.clouds.local import LocalProvider
from service.clouds.provider import CloudTraits
from service.clouds.registry import open_clouds
from service.errors import CloudsFileRefused, UnknownCloud
from service.settings import Settings
from tests.builders import spec


def read(tmp_path: Path, text: str) -> Clouds:
    file = tmp_path / "clouds.yaml"
    file.write_text(text)
    return open_clouds(Settings(home=tmp_path, clouds=file))


def test_without_a_file_machines_are_processes_of_this_computer(tmp_path: Path) -> None:
    clouds = open_clouds(Settings(home=tmp_path))
    assert [provider.name for provider in clouds] == ["local"]
    assert isinstance(clouds["local"], LocalProvider)


def test_every_entry_is_a_cloud_under_its_name(tmp_path: Path) -> None:
    clouds = read(tmp_path, "clouds: {here: {provider: local}, there: {provider: local}}")
    assert [provider.name for provider in clouds] == ["here", "there"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no cloud: write e.g. clouds:"),
        ("[]", "names no cloud"),
        ("clouds:", "names no cloud"),
        ("clouds: {}", "names no cloud"),
        ("clouds: {here: {provider: local}}\nregion: x", "line 2, column 1: region: unknown key"),
        ("clouds:\n  Here: {provider: local}", "line 2, column 3: clouds.Here: .* is no name"),
        (
            "clouds:\n  here: local",
            'line 2, column 3: clouds.here: provider must be .*, got "local"',
        ),
        ("clouds:\n  here:\n    provider: azure", 'provider must be .*, got "azure"'),
        (
            "clouds:\n  here:\n    provider: local\n    zone: x",
            "line 4, column 5: clouds.here.zone: unknown key",
        ),
        (
            "clouds:\n  here:\n    provider: local\n    aws_secret_access_key: abc",
            "line 4, column 5: .*credentials do not belong in this file",
        ),
        ("clouds:\n  here:\n    provider: local\n    token: abc", "credentials do not belong"),
        ("clouds: {here: {provider: local}, here: {provider: local}}", "here"),
        ("clouds: [", "clouds.yaml cannot be used"),
    ],
)
def test_a_wrong_file_is_refused_with_line_and_advice(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(CloudsFileRefused, match=words) as caught:
        read(tmp_path, text)
    assert "clouds.yaml cannot be used" in str(caught.value)
    assert "abc" not in str(caught.value)


AWS = {
    "region": "eu-central-1",
    "subnets": {"eu-central-1a": "subnet-0a1b2c3d"},
    "security_group": "sg-0a1b2c3d",
    "image": "ami-0a1b2c3d4e5f60718",
}
GOOGLE = {
    "project": "training-4711",
    "region": "europe-west3",
    "zones": ["europe-west3-a"],
    "subnetwork": "workers",
    "image": "projects/training-4711/global/images/worker",
}
WRONG = ("i", "", -1, 0.5, [], {}, [1], {"a": 1}, None, True)


def refusal_of(tmp_path: Path, entry: dict[str, object]) -> str:
    """Return what is said of an entry; nothing of one that fits."""
    try:
        read(tmp_path, json.dumps({"clouds": {"x": entry}}))
    except CloudsFileRefused as error:
        return str(error)
    return ""


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize(
    ("provider", "entry", "fields"),
    [("aws", AWS, AwsEntry.model_fields), ("google", GOOGLE, GoogleEntry.model_fields)],
    ids=["aws", "google"],
)
def test_a_value_that_does_not_fit_is_explained_by_what_its_key_means(
    tmp_path: Path,
    provider: str,
    entry: dict[str, object],
    fields: dict[str, FieldInfo],
    wrong: object,
) -> None:
    keys = [key for key, field in fields.items() if not field.exclude]
    said = {key: refusal_of(tmp_path, {**entry, "provider": provider, key: wrong}) for key in keys}
    assert any(said.values())
    for key, words in said.items():
        assert (
            not words
            or (f"clouds.x.{key}" in words and str(fields[key].description) in words)
            or "is not in region" in words
            or "could not be found" in words
            or "the keys of a bucket are" in words
        ), words


@pytest.mark.parametrize(
    "entry",
    [
        {**AWS, "provider": "aws", "subnets": {"us-east-1a": "subnet-0a1b2c3d"}},
        {**GOOGLE, "provider": "google", "zones": ["us-central1-a"]},
    ],
    ids=["aws", "google"],
)
def test_zones_of_another_region_are_refused(tmp_path: Path, entry: dict[str, object]) -> None:
    assert "column 13: clouds.x: zone us-" in refusal_of(tmp_path, entry)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CloudsFileRefused, match=r"none\.yaml cannot be read"):
        open_clouds(Settings(clouds=tmp_path / "none.yaml"))


class Rented(LocalProvider):
    """A cloud with zones."""

    def __init__(self, name: str, machine_type: str) -> None:
        super().__init__(Path("/nowhere"), "python", name=name)
        self.traits = CloudTraits(
            zones=("a", "b"), machine_type=machine_type, minimum_billed_seconds=60.0, image="i"
        )


ONE = Clouds([Rented("rented", "m7i.xlarge")])
NO_TYPE = Clouds([Rented("rented", "")])
TWO = Clouds([Rented("rented", "m7i.xlarge"), Rented("local", "local")])


@pytest.mark.parametrize(
    ("clouds", "machine", "expected"),
    [
        (ONE, None, ("rented", "m7i.xlarge", "on_demand")),
        (ONE, {}, ("rented", "m7i.xlarge", "on_demand")),
        (ONE, {"type": "c7i.large", "market": "spot"}, ("rented", "c7i.large", "spot")),
        (TWO, {"cloud": "local"}, ("local", "local", "on_demand")),
        (TWO, {"cloud": "rented", "market": "any"}, ("rented", "m7i.xlarge", "any")),
    ],
)
def test_a_job_is_completed_by_the_file_of_its_day(
    clouds: Clouds, machine: dict[str, str] | None, expected: tuple[str, str, str]
) -> None:
    asked = spec(**({} if machine is None else {"machine": machine}))
    found = clouds.complete(asked).machine
    assert found is not None
    assert (found.cloud, found.type, found.market) == expected


@pytest.mark.parametrize(
    ("clouds", "machine", "words"),
    [
        (TWO, None, "machine.cloud is missing: write one of rented, local"),
        (TWO, {"type": "x"}, "machine.cloud is missing"),
        (TWO, {"cloud": "aws"}, "there is no cloud aws: write machine.cloud: one of rented, local"),
        (ONE, {"cloud": "aws"}, "there is no cloud aws"),
        (NO_TYPE, None, "machine.type is missing"),
    ],
)
def test_a_job_that_fits_no_cloud_is_refused(
    clouds: Clouds, machine: dict[str, str] | None, words: str
) -> None:
    asked = spec(**({} if machine is None else {"machine": machine}))
    with pytest.raises(UnknownCloud, match=words):
        clouds.complete(asked)


def test_places_are_the_zones_of_one_market_after_the_other() -> None:
    asked = ONE.complete(spec(machine={"market": "any"}))
    places = ONE.places_for(asked)
    assert [(place.market, place.zone) for place in places] == [
        ("spot", "a"),
        ("spot", "b"),
        ("on_demand", "a"),
        ("on_demand", "b"),
    ]
    assert {place.terms.minimum.total_seconds() for place in places} == {60.0}
    assert {place.image for place in places} == {"i"}


def test_a_job_whose_entry_is_gone_has_no_place() -> None:
    asked = TWO.complete(spec(machine={"cloud": "rented"}))
    assert NO_TYPE.places_for(asked)
    assert not Clouds([Rented("other", "x")]).places_for(asked)


def test_a_job_of_this_computer_never_moves_to_a_rented_one() -> None:
    assert ONE.find(spec()) is not None, "the only cloud of its controller"
    assert TWO.find(spec()) is TWO["local"]
    rented = Clouds([Rented("aws", "p5.48xlarge"), Rented("google", "g2-standard-4")])
    assert (rented.find(spec()), rented.places_for(spec())) == (None, ())
