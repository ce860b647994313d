"""A job has room if every host has the memory of its roles beside the jobs that run, with one snapshot a host."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.scheduling.room import HostedRole, JobNeeds, RoleNeed, Room, taken_by_others
from services.printable import LINE_CHARACTERS

GB = 10**9


def role(kind: str, host: str, memory: int = 64 * GB, taken: int = 0, name: str = "") -> HostedRole:
    return HostedRole(kind, name or f"{kind[0]}@{host}", host, memory, taken)


def job(name: str = "new", *workers: str, **needs: int | tuple[int, int]) -> JobNeeds:
    """Return a job with needs in GB by role: of memory, or of memory and of a snapshot."""
    pairs = {kind: need if isinstance(need, tuple) else (need, 0) for kind, need in needs.items()}
    roles = {kind: RoleNeed(memory * GB, snapshot * GB) for kind, (memory, snapshot) in pairs.items()}
    return JobNeeds(name, roles, frozenset(workers))


APART = [role("worker", "a"), role("worker", "b"), role("aggregator", "c"), role("optimizer", "d")]
TOGETHER = [role("worker", "a"), role("aggregator", "a"), role("optimizer", "a"), role("worker", "b")]


def lack(roles: Sequence[HostedRole], running: Sequence[JobNeeds], new: JobNeeds) -> str:
    """Return the line about a job's shortage; empty if it has room."""
    found = Room(roles, running).find_shortage(new)
    assert found is None or (len(found.line) <= LINE_CHARACTERS and found.line.isprintable())
    return "" if found is None else found.line


def test_needs_of_roles_on_one_host_add_up() -> None:
    new = job("new", "w@a", "w@b", worker=22, aggregator=21, optimizer=22)
    assert lack(APART, [], new) == ""
    assert lack(TOGETHER, [], new) == (
        "waits for memory: worker w@a, aggregator a@a and optimizer o@a on one host need 65.0 GB, but 64.0 GB of "
        "64.0 GB is left"
    )


def test_a_worker_counts_for_the_job_that_has_it_and_other_roles_for_all() -> None:
    first = job("first", "w@a", worker=60, optimizer=40)
    assert lack(APART, [first], job("new", "w@b", worker=60, optimizer=24)) == ""
    assert lack(APART, [first], job("new", "w@b", worker=60, optimizer=25)) == (
        "waits for memory: optimizer o@d needs 25.0 GB, but 24.0 GB of 64.0 GB is left beside 1 job 40.0 GB"
    )
    assert lack(APART, [first], job("new", "w@a", worker=10, optimizer=1)).startswith(
        "waits for memory: worker w@a needs 10.0 GB, but 4.0 GB of 64.0 GB is left"
    )


def test_a_host_has_one_snapshot_at_a_time() -> None:
    running = [job("first", optimizer=(10, 15)), job("second", optimizer=(10, 5))]
    assert lack(APART, running, job(optimizer=(29, 15))) == ""
    assert "needs 30.0 GB, but 29.0 GB" in lack(APART, running, job(optimizer=(30, 15)))
    assert "needs 30.0 GB, but 29.0 GB" in lack(APART, running, job(optimizer=(28, 17))), (
        "two more for its larger copy"
    )


def test_shards_on_one_host_copy_their_parts_of_one_snapshot() -> None:
    shards = [role("shard", "a", name=f"s{number}") for number in range(4)]
    assert lack(shards, [], job(shard=(10, 6))) == ""
    assert lack(shards, [], job(shard=(10, 7))).startswith(
        "waits for memory: shard s0, shard s1 and 2 others on one host need 68.0 GB"
    )


def test_memory_that_others_have_taken_is_not_there() -> None:
    roles = [role("optimizer", "a", taken=50 * GB)]
    assert lack(roles, [], job(optimizer=14)) == ""
    assert lack(roles, [job("first", optimizer=4)], job(optimizer=14)) == (
        "waits for memory: optimizer o@a needs 14.0 GB, but 10.0 GB of 64.0 GB is left beside 1 job 4.0 GB and other "
        "processes 50.0 GB"
    )


def test_what_jobs_have_taken_counts_once() -> None:
    """Check a worker that connects while a job's tensors are there already."""
    running = job("first", "w@a", worker=40)
    needed = Room([role("worker", "a")], [running]).needed_bytes("a")
    assert needed == 40 * GB
    assert taken_by_others(64 * GB, 20 * GB, needed) == 4 * GB
    assert taken_by_others(64 * GB, 30 * GB, needed) == 0, "a job that has not taken all of it yet"
    assert Room([role("worker", "a")]).needed_bytes("elsewhere") == 0


def test_the_last_that_told_a_hosts_memory_counts() -> None:
    roles = [role("worker", "a", taken=60 * GB), role("optimizer", "a", taken=4 * GB)]
    assert lack(roles, [], job("new", "w@a", worker=30, optimizer=30)) == ""
    assert lack(roles[::-1], [], job("new", "w@a", worker=30, optimizer=30)) != ""


@pytest.mark.parametrize(
    "unknown",
    [role("optimizer", "", name="o"), role("optimizer", "a", memory=0), role("shard", "a", memory=1)],
)
def test_nothing_is_said_of_hosts_that_are_unknown_or_not_needed(unknown: HostedRole) -> None:
    assert (
        lack([unknown], [job("first", optimizer=999)], job("new", "w@elsewhere", worker=9, optimizer=999))
        == ""
    )


def test_a_host_that_is_too_small_for_the_job_alone_is_told_from_one_that_is_full() -> None:
    def is_lasting(running: list[JobNeeds], new: JobNeeds) -> bool:
        found = Room([role("optimizer", "a", taken=9 * GB)], running).find_shortage(new)
        assert found is not None
        return found.is_lasting

    assert is_lasting([], job(optimizer=(60, 5)))
    assert not is_lasting([], job(optimizer=(59, 5))), "other processes may end"
    assert not is_lasting([job("first", optimizer=60)], job(optimizer=5))


def test_the_host_that_lacks_most_is_named_whatever_the_order() -> None:
    new = job("new", "w@a", "w@b", worker=70, optimizer=90)
    assert {lack(roles, [], new) for roles in (APART, APART[::-1])} == {
        "waits for memory: optimizer o@d needs 90.0 GB, but 64.0 GB of 64.0 GB is left"
    }


KINDS = ("worker", "aggregator", "optimizer", "shard")
ROLES = st.lists(
    st.builds(
        HostedRole,
        st.sampled_from(KINDS),
        st.sampled_from("uvwx"),
        st.sampled_from("abc"),
        st.just(100),
        st.just(5),
    ),
    max_size=10,
    unique_by=lambda each: (each.role, each.name),
)
NEEDS = st.builds(
    JobNeeds,
    st.uuids().map(str),
    st.dictionaries(
        st.sampled_from(KINDS), st.builds(RoleNeed, st.integers(0, 60), st.integers(0, 30)), max_size=4
    ),
    st.frozensets(st.sampled_from("uvwx")),
)


@given(ROLES, st.lists(NEEDS, max_size=8))
def test_jobs_that_are_let_in_never_need_more_than_a_host_has(
    roles: list[HostedRole], jobs: list[JobNeeds]
) -> None:
    """Check it against sums over all processes, and that a job that is kept out would have needed more somewhere."""

    def overfull(running: list[JobNeeds]) -> bool:
        for host in {each.host for each in roles}:
            needs = [
                [
                    each.roles[role.role]
                    for role in roles
                    if role.host == host
                    and role.role in each.roles
                    and (role.role != "worker" or role.name in each.workers)
                ]
                for each in running
            ]
            memory = sum(need.memory_bytes for each in needs for need in each)
            snapshot = max((sum(need.snapshot_bytes for need in each) for each in needs), default=0)
            if 5 + memory + snapshot > 100:
                return True
        return False

    room, running = Room(roles), []
    for each in jobs:
        if room.find_shortage(each) is None:
            room.add(each)
            running.append(each)
            assert not overfull(running)
        else:
            assert overfull([*running, each])
