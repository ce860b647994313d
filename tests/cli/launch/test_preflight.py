"""What is checked of a host: version, Python, disk, ports, clock."""

from __future__ import annotations

import platform
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.launch.agent.protocol import PROTOCOL_VERSION, Facts, Probed
from cli.launch.preflight import CLOCK_SECONDS, FREE_BYTES, check_facts, check_probe
from services.version import tiermesh_version

FACTS = Facts(
    PROTOCOL_VERSION,
    tiermesh_version(),
    platform.python_version(),
    "h",
    "/r",
    FREE_BYTES,
    1 << 36,
    False,
    False,
)


def test_a_host_like_this_one_can_take_part() -> None:
    assert check_facts("box", FACTS) is None
    assert check_probe("box", Probed(5.0, ()), 4.0, 6.0) is None


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (replace(FACTS, tiermesh="0.0.1"), "has Tiermesh 0.0.1"),
        (replace(FACTS, protocol=PROTOCOL_VERSION + 1), "install that there"),
        (replace(FACTS, python="2.7.18"), "in Python 2.7.18"),
        (replace(FACTS, free_bytes=FREE_BYTES - 1), "free space"),
    ],
)
def test_each_difference_is_named_with_what_to_do(facts: Facts, said: str) -> None:
    refusal = check_facts("box", facts)
    assert refusal is not None
    assert refusal.reason.startswith("host box: ")
    assert said in refusal.reason


def test_a_used_port_is_named() -> None:
    refusal = check_probe("box", Probed(5.0, (7070,)), 4.0, 6.0)
    assert refusal is not None
    assert "port 7070 is in use" in refusal.reason


@given(st.floats(-1e6, 1e6), st.floats(0, 100), st.floats(0, 1))
def test_a_clock_is_refused_exactly_if_no_moment_of_the_answer_explains_it(
    ahead_seconds: float, way_seconds: float, part: float
) -> None:
    read_at = 1e9 + part * way_seconds
    refusal = check_probe("box", Probed(read_at + ahead_seconds, ()), 1e9, 1e9 + way_seconds)
    if abs(ahead_seconds) <= CLOCK_SECONDS:
        assert refusal is None
    if abs(ahead_seconds) > CLOCK_SECONDS + way_seconds + 1:
        assert refusal is not None
        assert ("ahead of" if ahead_seconds > 0 else "behind") in refusal.reason
