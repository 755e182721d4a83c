"""Clouds: the providers of a controller, and the places where a job's machines may be rented."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from datetime import timedelta

from scavenger.job.spec import JobSpec
from service.clouds.provider import CloudTraits, Provider
from service.errors import UnknownCloud
from service.offers import BillingTerms, Market, Offer
from service.prices import PriceBook

THIS_COMPUTER = "local"
MARKETS: dict[str, tuple[Market, ...]] = {
    "on_demand": ("on_demand",),
    "spot": ("spot",),
    "any": ("spot", "on_demand"),
}


class Clouds:
    """The providers of a controller, by the names of their entries in the clouds file.

    Args:
        providers: At least one, with different names.
    """

    def __init__(self, providers: Iterable[Provider]) -> None:
        self._providers = {provider.name: provider for provider in providers}
        if not self._providers:
            raise ValueError("a controller needs a cloud")

    def __iter__(self) -> Iterator[Provider]:
        return iter(self._providers.values())

    def __len__(self) -> int:
        return len(self._providers)

    def __contains__(self, name: str) -> bool:
        return name in self._providers

    def __getitem__(self, name: str) -> Provider:
        return self._providers[name]

    @property
    def default(self) -> Provider:
        """The cloud of jobs that name none: the only one, or this computer, or else the first."""
        first = next(iter(self._providers.values()))
        return self._providers.get(THIS_COMPUTER, first)

    def find(self, spec: JobSpec) -> Provider | None:
        """Return the cloud of a job; None if the clouds file has its entry no longer.

        A job that names none was submitted where this computer was the only cloud: it never moves
        to another one, whose machines may cost far more than it was planned with.
        """
        named = None if spec.machine is None else spec.machine.cloud
        if named is not None:
            return self._providers.get(named)
        return self.default if len(self._providers) == 1 else self._providers.get(THIS_COMPUTER)

    def traits_of(self, spec: JobSpec) -> CloudTraits:
        """Return the traits of a job's cloud; of a cloud without any if its entry is gone."""
        provider = self.find(spec)
        return CloudTraits() if provider is None else provider.traits

    def complete(self, spec: JobSpec) -> JobSpec:
        """Return a new job with its cloud and machine type written down, as they are now.

        A later change of the clouds file then moves no job to another cloud.

        Raises:
            UnknownCloud: It names none of several, or one that is not there, or no machine type.
        """
        machine = spec.machine
        names = ", ".join(self._providers)
        if machine is None and len(self._providers) == 1 and self.default.name == THIS_COMPUTER:
            return spec
        if (machine is None or machine.cloud is None) and len(self._providers) > 1:
            raise UnknownCloud(f"machine.cloud is missing: write one of {names}")
        provider = self.find(spec)
        if provider is None or (machine is not None and machine.cloud not in (None, provider.name)):
            given = "" if machine is None else machine.cloud
            raise UnknownCloud(f"there is no cloud {given}: write machine.cloud: one of {names}")
        named = None if machine is None else machine.type
        if not (named or provider.traits.machine_type):
            raise UnknownCloud(
                f"machine.type is missing: name the machines of {provider.name} that the job needs"
            )
        return spec.on_machine(provider.name, named or provider.traits.machine_type)

    def price(self, spec: JobSpec, book: PriceBook) -> JobSpec:
        """Return a job with the price of its machines on demand, if it names none itself.

        Raises:
            UnknownPrice: A part of that price is not known.
        """
        provider = self.find(spec)
        if spec.price is not None or provider is None:
            return spec
        traits = provider.traits
        return spec.at_price(
            book.price_per_hour(traits.priced, spec.machine_type or traits.machine_type)
        )

    @property
    def priced_regions(self) -> Set[tuple[str, str]]:
        """Where the prices of all its machines are found: provider and region."""
        found = (provider.traits.priced for provider in self)
        return {(each.provider, each.region) for each in found}

    def places_for(self, spec: JobSpec) -> tuple[Offer, ...]:
        """Return where a job's machines may be rented, in the order in which places are asked.

        All are in one region: workers that exchange gradients between regions would wait for the
        network, and pay for it.
        """
        provider = self.find(spec)
        if provider is None:
            return ()
        traits, machine = provider.traits, spec.machine
        terms = BillingTerms(
            spec.price_per_hour,
            timedelta(seconds=spec.quantum),
            timedelta(seconds=traits.minimum_billed_seconds),
        )
        machine_type = (machine.type if machine else None) or traits.machine_type
        image = spec.run.image or traits.image
        return tuple(
            Offer(provider.name, zone, machine_type, market, image, terms)
            for market in MARKETS["on_demand" if machine is None else machine.market]
            for zone in traits.zones
        )
