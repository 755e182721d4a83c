"""What stands for a job follows from its orders alone, however far the controller has got."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import count

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from scavenger.schemas.orders import WISHES as WISH_TYPES
from scavenger.schemas.orders import (
    ChangeWish,
    OrderState,
    PauseWish,
    ProbeWish,
    ResizeWish,
    ResumeWish,
    Wish,
)
from service.db import jobs
from service.db.orders import (
    StoredOrder,
    end_order,
    give_order,
    orders_before,
    standing_orders_of,
    wish_document,
)
from service.state.orders import Standing, fold_orders, subjects_of
from tests.builders import NOW, spec

POINTS = st.builds(
    lambda workers, batch: {"workers": workers, "global_batch": batch},
    st.sampled_from([1, 2]),
    st.sampled_from([32, 128]),
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "limits": st.fixed_dictionaries(
            {},
            optional={
                "max_cost": st.sampled_from(["2 USD", "3 USD", None]),
                "max_time": st.sampled_from(["1h", "2h", None]),
            },
        ),
        "objective": st.sampled_from(["knee", "cheapest", {"time_weight": 0.5}]),
    },
).filter(lambda wish: bool(wish.get("limits") or "objective" in wish))
WISHES: st.SearchStrategy[Wish] = st.one_of(
    st.one_of(st.sampled_from(["auto", "knee", "cheapest", "fastest"]), POINTS).map(
        lambda to: ResizeWish.model_validate({"to": to})
    ),
    POINTS.map(ProbeWish.model_validate),
    st.just(PauseWish()),
    st.just(ResumeWish()),
    CHANGES.map(ChangeWish.model_validate),
)


JOB_NUMBERS = count(1)


def given_in_turn(wishes: list[Wish]) -> tuple[StoredOrder, ...]:
    kinds = {wish: kind for kind, wish in WISH_TYPES.items()}
    return tuple(
        StoredOrder(
            "job_1", number, kinds[type(wish)], wish, "", "token", NOW + timedelta(minutes=number)
        )
        for number, wish in enumerate(wishes, 1)
    )


def shown(standing: Standing) -> object:
    """What a job does by its orders, whichever of them were obeyed already."""
    return (
        *(standing.preference, standing.pinned, standing.is_paused),
        standing.apply_to(spec()),
        standing.prefer_in(spec()),
    )


def ended(order: StoredOrder, state: str) -> StoredOrder:
    return replace(order, state=state, told="so", ended_at=NOW)


@given(wishes=st.lists(WISHES, max_size=8), obeyed=st.lists(st.booleans(), min_size=8))
def test_what_stands_does_not_depend_on_how_many_orders_were_obeyed(
    wishes: list[Wish], obeyed: list[bool]
) -> None:
    orders = given_in_turn(wishes)
    later = tuple(
        ended(order, "done") if is_done else order
        for order, is_done in zip(orders, obeyed, strict=False)
    )
    assert shown(fold_orders(later)) == shown(fold_orders(orders))


@given(wishes=st.lists(WISHES, max_size=8))
def test_an_order_that_is_replaced_is_missed_by_none(wishes: list[Wish]) -> None:
    orders = given_in_turn(wishes)
    before = fold_orders(orders)
    replaced = dict(before.replaced_by)
    after = fold_orders(
        ended(order, "replaced") if order.number in replaced else order for order in orders
    )
    assert shown(after) == shown(before)
    assert not after.replaced_by
    by_number = {order.number: order for order in orders}
    for number, later in replaced.items():
        assert later > number
        assert subjects_of(by_number[number].wish) & subjects_of(by_number[later].wish)
    kept = [order.wish for order in after.open]
    assert len([wish for wish in kept if isinstance(wish, ResizeWish)]) <= 1
    assert len([wish for wish in kept if isinstance(wish, PauseWish | ResumeWish)]) <= 1


@given(wishes=st.lists(WISHES, min_size=1, max_size=8))
def test_an_order_that_is_refused_leaves_what_stood_before(wishes: list[Wish]) -> None:
    *before, last = given_in_turn(wishes)
    assert shown(fold_orders([*before, ended(last, "refused")])) == shown(fold_orders(before))


@given(wishes=st.lists(st.sampled_from([PauseWish(), ResumeWish()]), max_size=6))
def test_a_resume_that_is_refused_leaves_the_pause_that_it_had_replaced(
    wishes: list[Wish],
) -> None:
    *before, resume = given_in_turn([*wishes, ResumeWish()])
    replaced = dict(fold_orders([*before, resume]).replaced_by)
    left = [ended(each, "replaced") if each.number in replaced else each for each in before]
    assert fold_orders([*left, ended(resume, "refused")]).pauses == fold_orders(before).pauses


@given(wishes=st.lists(WISHES, max_size=8))
def test_a_pause_ends_when_the_next_order_resumes(wishes: list[Wish]) -> None:
    standing = fold_orders(given_in_turn(wishes))
    for pause, following in zip(standing.pauses, standing.pauses[1:], strict=False):
        assert pause.until is not None
        assert pause.since < pause.until <= following.since
        assert standing.was_paused_at(pause.since)
        assert not standing.was_paused_at(pause.until)


@given(wish=WISHES)
def test_a_wish_is_read_back_as_it_was_stored(wish: Wish) -> None:
    assert type(wish).model_validate(wish_document(wish)) == wish


@given(
    wishes=st.lists(WISHES, max_size=12),
    states=st.lists(st.sampled_from(["open", "done", "done", "refused", "replaced"]), min_size=12),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_orders_that_a_tick_reads_tell_what_all_of_them_do(
    engine: Engine, wishes: list[Wish], states: list[OrderState]
) -> None:
    job = f"job_{next(JOB_NUMBERS)}"
    with engine.begin() as connection:
        jobs.create(connection, job, spec(), NOW)
        for order, state in zip(given_in_turn(wishes), states, strict=False):
            facts = {"reason": "", "by": "token", "now": order.at}
            given = give_order(connection, job, order.kind, order.wish, **facts)
            if state != "open":
                end_order(connection, job, given.number, state, "so", NOW)
        every = orders_before(connection, job, None, 100)[::-1]
        read = standing_orders_of(connection, [job])[job]
    assert len(every) == len(wishes)
    assert fold_orders(read) == fold_orders(every)
    done = [type(one.wish) for one in read if one.state == "done"]
    assert max(done.count(ResizeWish), done.count(ProbeWish)) <= 1
