"""The plan of `tiermesh chaos`: reproducible from its seed, and always possible to carry out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from cli.chaos.plan import Direction, Fault, FaultKind, draw_plan

NAMES = st.lists(st.sampled_from("abcdef"), min_size=1, unique=True)


def plan_of_seed(seed: int, faults: int = 12) -> tuple[Fault, ...]:
    return draw_plan(
        seed, faults, steps=100, daemons=("worker-1", "aggregator"), links=("worker-1>aggregator",),
        heartbeat_seconds=1.0,
    )  # fmt: skip


@given(
    seed=st.integers(), faults=st.integers(0, 40), steps=st.integers(1, 1000), daemons=NAMES, links=NAMES,
    heartbeat_seconds=st.floats(0.01, 60.0),
)  # fmt: skip
def test_a_plan_is_reproducible_and_possible(
    seed: int, faults: int, steps: int, daemons: list[str], links: list[str], heartbeat_seconds: float
) -> None:
    links = [f"{name}>x" for name in links]
    draw = partial(draw_plan, steps=steps, daemons=daemons, links=links, heartbeat_seconds=heartbeat_seconds)
    plan = draw(seed, faults)
    assert plan == draw(seed, faults)
    assert len(plan) == faults
    assert [fault.at_step for fault in plan] == sorted(fault.at_step for fault in plan)
    for fault in plan:
        assert 0 <= fault.at_step < steps, "the job still runs then"
        assert fault.target in (daemons if fault.kind.of_daemons else links)
        assert 0.5 * heartbeat_seconds <= fault.seconds <= 5 * heartbeat_seconds
        assert (fault.bytes_per_second > 0) == (fault.kind is FaultKind.SLOW)
        assert (fault.delay_seconds > 0) == (fault.kind is FaultKind.DELAY)
        assert (fault.after_bytes > 0) == (fault.kind is FaultKind.BREAK)
        assert not (fault.kind is FaultKind.BREAK and fault.way is Direction.BOTH)
        assert fault.target in str(fault)
    counts = Counter(fault.kind for fault in plan)
    assert max(counts.values(), default=0) - min(counts[kind] for kind in FaultKind) <= 1


def test_seeds_differ() -> None:
    assert len({plan_of_seed(seed) for seed in range(20)}) == 20


def test_a_seed_keeps_its_plan_across_versions() -> None:
    """Pin the plan of one seed, because people report failures by seed."""
    first = plan_of_seed(5, faults=3)
    assert [(fault.at_step, fault.kind, fault.target) for fault in first] == [
        (14, FaultKind.SLOW, "worker-1>aggregator"),
        (48, FaultKind.BREAK, "worker-1>aggregator"),
        (99, FaultKind.CUT, "worker-1>aggregator"),
    ]


def test_a_fault_is_described() -> None:
    fault = Fault(3, FaultKind.CUT, "worker-1>aggregator", 2.5, way=Direction.BACK)
    assert str(fault) == "worker-1>aggregator: cut, only back, for 2.5 s"
    assert str(replace(fault, kind=FaultKind.SLOW, way=Direction.BOTH, bytes_per_second=65536)).endswith(
        "slow for 2.5 s: 64 KiB/s"
    )
    assert (
        str(replace(fault, kind=FaultKind.KILL, target="optimizer"))
        == "optimizer: killed, restarted after 2.5 s"
    )
