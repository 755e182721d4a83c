"""What the doors of one AWS region tell of types, zones, images and prices, and of the caller."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from tests.fakecloud.aws_region import VPC, AwsRegion
from tests.fakecloud.aws_wire import Parameters
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.machine import Request
from tests.fakecloud.refusal import Refusal


class AwsCatalogue:
    """Answers calls that start and end nothing.

    Attributes:
        actions: What is done for each action.
    """

    def __init__(self, cloud: FakeCloud, region: AwsRegion) -> None:
        self.cloud, self.region = cloud, region
        self.actions: Mapping[str, Callable[[Any], Parameters]] = {
            "DescribeInstanceTypes": self._describe_types,
            "DescribeInstanceTypeOfferings": self._describe_offerings,
            "DescribeSubnets": self._describe_subnets,
            "DescribeImages": self._describe_images,
            "DescribeSpotPriceHistory": self._describe_prices,
            "GetProducts": self._list_products,
            "GetCallerIdentity": self._identify,
            "GetParameter": self._parameter,
        }

    def _describe_types(self, told: Parameters) -> Parameters:
        known = self.cloud.settings.tariffs
        for one in told.get("InstanceTypes", ()):
            if one not in known:
                raise Refusal("InvalidInstanceType", f"no instance type {one}")
        shown = [self._type(one) for one in told.get("InstanceTypes") or known]
        return _paged("InstanceTypes", shown, told)

    def _type(self, name: str) -> Parameters:
        facts = self.region.facts(name)
        memory = {"SizeInMiB": facts.accelerator_mib}
        gpu = {"Name": facts.accelerator, "Count": facts.accelerators, "MemoryInfo": memory}
        return {
            "InstanceType": name,
            "VCpuInfo": {"DefaultVCpus": facts.vcpus},
            "MemoryInfo": {"SizeInMiB": facts.memory_mib},
            "SupportedUsageClasses": ["on-demand", "spot"],
            "GpuInfo": None if facts.accelerator is None else {"Gpus": [gpu]},
        }

    def _describe_offerings(self, told: Parameters) -> Parameters:
        if told.get("LocationType") != "availability-zone":
            raise Refusal("InvalidParameterValue", "this door knows offerings by zone only")
        filters = {one["Name"]: one["Values"] for one in told.get("Filters", ())}
        shown = [
            {"InstanceType": kind, "LocationType": "availability-zone", "Location": zone}
            for kind in filters.get("instance-type", self.cloud.settings.tariffs)
            for zone in filters.get("location", self.region.zones)
            if kind in self.cloud.settings.tariffs and self.region.is_sold(kind, zone)
        ]
        return _paged("InstanceTypeOfferings", shown, told)

    def _describe_subnets(self, told: Parameters) -> Parameters:
        for one in told.get("SubnetIds", ()):
            if one not in self.region.subnets:
                raise Refusal("InvalidSubnetID.NotFound", f"the subnet {one} does not exist")
        return {
            "Subnets": [
                {
                    "SubnetId": one,
                    "AvailabilityZone": self.region.subnets[one],
                    "VpcId": VPC,
                    "State": "available",
                    "AvailableIpAddressCount": 250,
                }
                for one in told.get("SubnetIds") or self.region.subnets
            ]
        }

    def _describe_images(self, told: Parameters) -> Parameters:
        for one in told.get("ImageIds", ()):
            if one not in self.region.images:
                raise Refusal("InvalidAMIID.NotFound", f"the image {one} does not exist")
        return {
            "Images": [
                {
                    "ImageId": one,
                    "State": "available",
                    "Architecture": "x86_64",
                    "RootDeviceType": "ebs",
                    "RootDeviceName": self.region.images[one],
                }
                for one in told.get("ImageIds") or self.region.images
            ]
        }

    def _describe_prices(self, told: Parameters) -> Parameters:
        now, spot = self.cloud.clock.now(), self.cloud.settings.spot
        end = min(self._moment(told.get("EndTime"), now), now - self.region.price_delay)
        # A start after that gives the newest price, as EC2 gives the last one before the start.
        start = min(self._moment(told.get("StartTime"), 0.0), end)
        zones = [told["AvailabilityZone"]] if "AvailabilityZone" in told else self.region.zones
        tariffs = self.cloud.settings.tariffs
        filters = {one["Name"]: one["Values"] for one in told.get("Filters", ())}
        shown = [
            {
                "AvailabilityZone": zone,
                "InstanceType": kind,
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": f"{float(share) * tariffs[kind].price_per_hour:.12f}",
                "Timestamp": self.region.epoch + timedelta(seconds=since),
            }
            for kind in told.get("InstanceTypes") or tariffs
            if kind in filters.get("instance-type", [kind])
            for zone in zones
            for since, share in spot.changes(Request(kind, zone, market="spot").place, start, end)
        ]
        return _paged("SpotPriceHistory", shown[::-1], told)

    def _moment(self, at: datetime | None, otherwise: float) -> float:
        """Return a time of the outside as seconds of the cloud's clock."""
        return otherwise if at is None else max((at - self.region.epoch).total_seconds(), 0.0)

    def _list_products(self, told: Parameters) -> Parameters:
        """Return products as AWS does: each a text, with reserved terms and idle capacity too."""
        wanted = {one["Field"]: one["Value"] for one in told["Filters"]}
        known = self.cloud.settings.tariffs
        if wanted["instanceType"] not in known or wanted["regionCode"] != self.region.name:
            return {"FormatVersion": "aws_v1", "PriceList": []}
        facts, rate = self.region.facts(wanted["instanceType"]), known[wanted["instanceType"]]
        hourly = {"unit": "Hrs", "pricePerUnit": {"USD": f"{rate.price_per_hour:.12f}"}}
        once = {"unit": "Quantity", "pricePerUnit": {"USD": "9000"}}
        product = {
            "product": {
                "productFamily": "Compute Instance",
                "attributes": {
                    **wanted,
                    "vcpu": str(facts.vcpus),
                    "memory": f"{facts.memory_mib / 1024:g} GiB",
                },
            },
            "serviceCode": told["ServiceCode"],
            "terms": {
                "OnDemand": {"A.B": {"priceDimensions": {"A.B.C": hourly}}},
                "Reserved": {"A.D": {"priceDimensions": {"A.D.E": once}}},
            },
        }
        idle = {"unit": "Hrs", "pricePerUnit": {"USD": "0.0000000000"}}
        reserved = {**product, "terms": {"OnDemand": {"F": {"priceDimensions": {"G": idle}}}}}
        return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(reserved), json.dumps(product)]}

    def _identify(self, told: Parameters) -> Parameters:
        account = self.region.account
        role = f"arn:aws:sts::{account}:assumed-role/controller/i-1"
        return {"Account": account, "Arn": role, "UserId": "AROA:i-1"}

    def _parameter(self, told: Parameters) -> Parameters:
        value = self.region.parameters.get(told["Name"])
        if value is None:
            raise Refusal("ParameterNotFound", f"there is no {told['Name']}")
        return {"Parameter": {"Name": told["Name"], "Type": "String", "Value": value}}


def _paged(name: str, shown: Sequence[Parameters], told: Parameters) -> Parameters:
    """Return one page of what is to be shown."""
    start, size = int(told.get("NextToken", 0)), told.get("MaxResults", 1000)
    after = str(start + size) if start + size < len(shown) else None
    return {name: shown[start : start + size], "NextToken": after}
