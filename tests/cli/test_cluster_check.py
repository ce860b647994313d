"""What `tiermesh check --cluster` calls slow, and what it prints."""

from __future__ import annotations

import pytest

from cli.cluster_check import _raise_first_problem, find_slow, format_speed, format_table
from protos.checks_pb2 import AxisReport, LinkReport, MeshReport
from protos.jobs_pb2 import CheckedLink, CheckedMesh
from services.errors import Failed


def link(
    name: str, up: float, down: float = 1e8, peer_role: str = "aggregator", **fields: object
) -> CheckedLink:
    report = LinkReport(
        latency_seconds=1e-3,
        up_bytes_per_second=up,
        down_bytes_per_second=down,
        **fields,
    )
    return CheckedLink(name=name, role="worker", peer="a", peer_role=peer_role, report=report)


@pytest.mark.parametrize(
    ("links", "slow"),
    [
        ([], []),
        ([link("w1", 1e6)], []),
        ([link("w1", 1e8), link("w2", 6e7), link("w3", 1e8)], []),
        ([link("w1", 1e8), link("w2", 4e7), link("w3", 1e8)], [1]),
        ([link("w1", 1e8), link("w2", 1e8, 1e7), link("w3", 1e8)], [1]),
        ([link("w1", 1e8), link("w2", 1e7), link("w3", 1e8, peer_role="shard")], [1]),
        ([link("w1", 1e10, shared_memory=True), link("w2", 1e8)], []),
        ([link("w1", 1e8), link("w2", 1e6, problem="lost"), link("w3", 1e8)], []),
        ([link("w1", 1e8), link("w2", 0), link("w3", 1e8)], []),
    ],
)
def test_slow_is_below_half_the_median_of_its_kind(links: list[CheckedLink], slow: list[int]) -> None:
    assert sorted(find_slow(links)) == slow


def test_both_directions_are_named() -> None:
    (text,) = find_slow([link("w1", 1e8), link("w2", 1e7, 1e7), link("w3", 1e8)]).values()
    assert (
        text == "80.0 Mbit/s up, where 800.0 Mbit/s is usual; 80.0 Mbit/s down, where 800.0 Mbit/s is usual"
    )


def test_speeds_have_the_units_of_links() -> None:
    assert [format_speed(each) for each in (1250.0, 1.2e8, 1.25e9)] == [
        "0.0 Mbit/s",
        "960.0 Mbit/s",
        "10.00 Gbit/s",
    ]


def test_the_table() -> None:
    links = [
        link("w1", 1e8),
        link("w2", 1e7, main_port=True),
        link("w3", 0, 0, wrong_bits=True, problem="p"),
        CheckedLink(
            name="w4", role="worker", peer="a", peer_role="aggregator", report=LinkReport(problem="p")
        ),
    ]
    assert [" ".join(line.split()) for line in format_table(links, [1])] == [
        "link path latency up down result",
        "worker w1 -> aggregator a wire 1.00 ms 800.0 Mbit/s 800.0 Mbit/s passed",
        "worker w2 -> aggregator a wire, main port 1.00 ms 80.0 Mbit/s 800.0 Mbit/s slow",
        "worker w3 -> aggregator a wire 1.00 ms - - WRONG VALUES",
        "worker w4 -> aggregator a - - - - FAILED",
    ]


@pytest.mark.parametrize(
    ("report", "resets"),
    [
        (MeshReport(problem="worker w was lost during the check: silent for 13.1 s"), False),
        (
            MeshReport(rows=1, columns=2, axes=[AxisReport(devices=2, wrong=["device 1"], wrong_count=1)]),
            True,
        ),
    ],
)
def test_devices_are_reset_for_wrong_sums_alone(report: MeshReport, resets: bool) -> None:
    with pytest.raises(Failed) as failed:
        _raise_first_problem([CheckedMesh(name="w", report=report)], [])
    assert ("tt-smi -r" in str(failed.value)) == resets
    assert "tiermesh check --mesh" in str(failed.value)
