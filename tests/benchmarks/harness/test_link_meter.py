"""The link meter counts bytes of TCP streams, and a phase lasts from its first payload to its last."""

from __future__ import annotations

import pytest

from benchmarks.harness.link_meter import FIRST_BYTES, Phase, parse, phase_of

NET_DEV = """Inter-|   Receive                           |  Transmit
 face |bytes    packets errs drop fifo frame |bytes    packets errs drop fifo colls carrier compressed
    lo: 1000 10 0 0 0 0 0 0 1000 10 0 0 0 0 0 0
  eth0: 787264998   12613    0    0    0     0       0      0   827608   12538    0    0    0     0    0     0
"""


def test_counters_exclude_headers() -> None:
    counters = parse(1.5, NET_DEV, "eth0")
    assert (counters.seconds, counters.received, counters.sent) == (
        1.5,
        787264998 - 66 * 12613,
        827608 - 66 * 12538,
    )


def test_a_missing_device_is_refused() -> None:
    with pytest.raises(ValueError, match="no device 'eth1'"):
        parse(0.0, NET_DEV, "eth1")


def test_a_phase_lasts_from_its_first_payload_to_its_last() -> None:
    base, size = 5_000, 10 * FIRST_BYTES
    moments = [
        (0.0, base),
        (1.0, base + 2_000),  # control messages and acknowledgements
        (2.0, base + 2 * FIRST_BYTES),
        (3.0, base + size - 1),
        (4.0, base + size),
        (5.0, base + size + 9_000),
    ]
    assert phase_of(moments, size) == Phase(1.0, 4.0)
    assert phase_of(moments, size).seconds == 3.0


def test_a_phase_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="fewer than 100 bytes"):
        phase_of([(0.0, 0), (1.0, 99)], 100)
