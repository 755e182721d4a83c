"""A cluster with parameter servers follows Directives, and starts anew where it cannot."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig
from scavenger.protocol import Directive, Member
from tests.builders import directive
from worker_agent.launcher.server_cluster import ClusterTask, ServerCluster

SERVERS = (Member("s0", "server:0"), Member("s1", "server:1"))
WORKERS = st.sampled_from("abcdef")
# A worker whose process was started again has another address.
MEMBERS = st.lists(
    st.builds(Member, WORKERS, st.sampled_from(["1", "2"])),
    min_size=1,
    max_size=6,
    unique_by=lambda member: member.worker,
)


def ordered(generation: int, members: list[Member], local_batch: int = 8) -> Directive:
    config = ClusterConfig(len(members), local_batch * len(members))
    plain = directive(len(members), config.global_batch)
    return replace(
        plain, generation=generation, config=config, members=tuple(members), servers=SERVERS
    )


@given(st.lists(MEMBERS, min_size=1, max_size=40))
def test_no_task_is_given_to_two_processes(orders: list[list[Member]]) -> None:
    cluster = ServerCluster.start(ordered(1, orders[0]))
    holders: dict[int, tuple[str, ClusterTask]] = {}
    for generation, members in enumerate(orders[1:], start=2):
        newest = ordered(generation, members)
        adapted = cluster.adapt(newest)
        if adapted is None:
            has_same_chief = newest.members[0] == ordered(1, orders[0]).members[0]
            newcomers = [
                m
                for m in members
                if cluster.tasks.get(m.worker, None) is None
                or cluster.tasks[m.worker].address != m.address
            ]
            assert not has_same_chief or cluster.given + len(newcomers) > cluster.capacity
            continue
        assert list(adapted.tasks) == [member.worker for member in members]
        for worker, task in adapted.tasks.items():
            assert holders.setdefault(task.index, (worker, task)) == (worker, task)
            assert task.index < adapted.given <= adapted.capacity
            if cluster.tasks.get(worker) != task:
                assert task.index >= cluster.given
                assert task.since == generation
        assert ServerCluster.from_json(adapted.to_json()) == adapted
        cluster = adapted


@given(MEMBERS, st.integers(1, 64), st.integers(1, 64))
def test_what_the_script_has_read_at_its_start_starts_it_anew(
    members: list[Member], before: int, after: int
) -> None:
    cluster = ServerCluster.start(ordered(1, members, before))
    goes_on = cluster.adapt(ordered(2, members, after)) is not None
    assert goes_on == (before == after)


@given(MEMBERS)
def test_other_servers_or_another_chief_start_it_anew(members: list[Member]) -> None:
    cluster = ServerCluster.start(ordered(1, members))
    swapped = replace(ordered(2, members), servers=SERVERS[::-1])
    assert cluster.adapt(swapped) is None
    chief = replace(members[0], address="3")
    assert cluster.adapt(ordered(2, [chief, *members[1:]])) is None


@given(st.lists(st.tuples(MEMBERS, st.booleans()), min_size=1, max_size=40))
def test_a_coordinators_tasks_stay_those_that_it_has_started_with(
    orders: list[tuple[list[Member], bool]],
) -> None:
    cluster = ServerCluster.start(ordered(1, orders[0][0]))
    given, batch = cluster.given, 8 * cluster.given
    for generation, (members, repairs) in enumerate(orders[1:], start=2):
        config = ClusterConfig(len(members), batch)
        newest = replace(ordered(generation, members), config=config, repairs=repairs)
        replaced = cluster.replace_lost(newest)
        has_same_chief = members[0] == orders[0][0][0]
        is_shrunk = len(members) < len(cluster.tasks) and not repairs
        assert (replaced is not None) == (
            has_same_chief and not is_shrunk and len(members) <= given
        )
        if replaced is None:
            continue
        assert [(w, task.address) for w, task in replaced.tasks.items()] == [
            (member.worker, member.address) for member in members
        ]
        assert len(replaced.indexes) == len(members)
        assert replaced.indexes <= set(range(given))
        for worker, task in replaced.tasks.items():
            before = cluster.tasks.get(worker)
            is_same = before is not None and before.address == task.address
            assert task == before if is_same else task.since == generation
        other = ClusterConfig(len(members), batch + 8 * len(members))
        assert cluster.replace_lost(replace(newest, config=other, repairs=False)) is None
        cluster = replaced
