"""The cap holds whatever machines do and whoever is silent: the real ledger on a real database."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from service import ledger
from service.db import jobs, vms
from tests.builders import NOW, spec

PRICE = Decimal("3.6")  # dollars per hour: a tenth of a cent per second
QUANTUM = timedelta(minutes=2)

moves = st.lists(
    st.one_of(
        st.tuples(st.just("launch"), st.integers(1, 4)),
        st.tuples(st.just("renew"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.integers(0, 400)),
        st.tuples(st.just("end"), st.integers(0, 5)),
    ),
    min_size=1,
    max_size=25,
)


class Fleet:
    """Machines that run as long as they have prepaid, plus the seconds it takes to power off."""

    def __init__(self, engine: Engine, job: str, cap: Decimal, terms: vms.Terms) -> None:
        self.engine, self.job, self.cap, self.terms, self.now = engine, job, cap, terms, NOW
        with engine.begin() as connection:
            jobs.create(connection, job, spec(), NOW)

    def machines(self) -> tuple[vms.Vm, ...]:
        with self.engine.connect() as connection:
            return vms.of_job(connection, self.job)

    def launch(self, count: int) -> None:
        with self.engine.begin() as connection:
            machines = vms.of_job(connection, self.job)
            span = ledger.affordable(machines, self.cap, self.terms, count)
            for number in range(count) if span is not None else ():
                first = len(machines) + 1
                vms.intend(connection, self.job, first + number, self.terms, self.now, span)

    def renew(self, place: int) -> None:
        for vm in self.machines()[place : place + 1]:
            if self.is_running(vm):
                with self.engine.begin() as connection:
                    ledger.renew(connection, self.job, vm.id, self.cap, self.now)

    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        with self.engine.begin() as connection:
            for vm in self.machines():
                if vm.is_alive and not self.is_running(vm):
                    vms.gone(connection, vm.id, self.end_of(vm))

    def end(self, place: int) -> None:
        for vm in self.machines()[place : place + 1]:
            with self.engine.begin() as connection:
                vms.gone(connection, vm.id, self.now)

    def end_of(self, vm: vms.Vm) -> datetime:
        return vm.prepaid_until + ledger.GRACE

    def is_running(self, vm: vms.Vm) -> bool:
        return vm.is_alive and self.now < self.end_of(vm)

    def bill_if_all_went_silent(self) -> Decimal:
        ends = {vm.id: vm.ended_at or self.end_of(vm) for vm in self.machines()}
        spans = [(ends[vm.id] - vm.intended_at) for vm in self.machines()]
        billed = [math.ceil(span / QUANTUM) * QUANTUM for span in spans]
        exactly = spans if not self.terms.quantum else billed
        return sum((PRICE * Decimal(span.total_seconds()) / 3600 for span in exactly), Decimal(0))


@pytest.fixture
def numbers() -> list[int]:
    return [0]


@given(
    moves,
    st.sampled_from([Decimal("0.01"), Decimal("0.05"), Decimal("0.7"), Decimal("3")]),
    st.sampled_from([timedelta(0), QUANTUM]),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_bill_never_passes_the_cap(
    engine: Engine,
    numbers: list[int],
    plan: list[tuple[str, int]],
    cap: Decimal,
    quantum: timedelta,
) -> None:
    numbers[0] += 1
    fleet = Fleet(engine, f"job_{numbers[0]}", cap, vms.Terms(PRICE, quantum))
    for move, argument in plan:
        getattr(fleet, move)(argument)
        assert fleet.bill_if_all_went_silent() <= cap
