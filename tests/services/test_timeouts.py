"""Tests of the timeouts: their order, and their table in docs/operate/limits.md."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

import pytest

from services.errors import Refused
from services.timeouts import STANDARD_TIMEOUTS, TIMEOUTS_IN_HEARTBEATS, Timeouts


def test_timeouts_are_ascending_multiples_of_the_heartbeat() -> None:
    assert [field.name for field in fields(Timeouts)] == list(TIMEOUTS_IN_HEARTBEATS)
    for heartbeat in (0.1, 5.0, 600.0):
        seconds_of = asdict(Timeouts.from_heartbeat(heartbeat))
        assert seconds_of == {
            name: pytest.approx(count * heartbeat) for name, count in TIMEOUTS_IN_HEARTBEATS.items()
        }
        assert sorted(set(seconds_of.values())) == list(seconds_of.values())


def test_dead_worker_is_detected_within_three_heartbeats() -> None:
    assert STANDARD_TIMEOUTS.silent + STANDARD_TIMEOUTS.tick <= 3 * 5.0


def test_worker_survives_the_loss_of_two_beats_in_a_row() -> None:
    assert 3 * STANDARD_TIMEOUTS.beat + STANDARD_TIMEOUTS.tick < STANDARD_TIMEOUTS.silent


@pytest.mark.parametrize("heartbeat", [0.0, -1.0, float("nan"), float("inf")])
def test_heartbeat_that_is_not_positive_is_refused(heartbeat: float) -> None:
    with pytest.raises(Refused, match=f"heartbeat of {heartbeat:g} s.*more than 0"):
        Timeouts.from_heartbeat(heartbeat)


def test_timeout_can_be_overridden_within_the_order() -> None:
    assert Timeouts.from_heartbeat(5.0, {"stall": 900.0}).stall == 900.0


@pytest.mark.parametrize(
    ("overrides", "facts"),
    [
        ({"silent": 30.0}, "timeout lapse: 15 s.*silent.*30 s"),
        ({"lapse": 26.0}, "timeout ping: 20 s.*lapse.*26 s"),
        ({"takeover": 15.0}, "timeout takeover: 15 s.*ping.*20 s"),
        ({"stall": 180.0}, "timeout stall: 180 s.*follow.*180 s"),
        ({"tick": 0.0}, "timeout tick: 0 s.*more than 0"),
        ({"unfit": float("inf")}, "timeout unfit: inf s"),
        ({"silent": float("nan")}, "timeout silent: nan s"),
        ({"silence": 3.0}, "timeout silence: .*tick, beat, "),
    ],
)
def test_overrides_that_break_the_order_are_refused(overrides: dict[str, float], facts: str) -> None:
    with pytest.raises(Refused, match=facts):
        Timeouts.from_heartbeat(5.0, overrides)


def test_documented_table_matches_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operate" / "limits.md").read_text()
    section = page.partition("## Timeouts")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if "| `" in line
    ]
    documented = [(row[0].strip("` *"), float(row[1]), float(row[2].removesuffix(" s"))) for row in rows]
    assert documented == [
        (name, TIMEOUTS_IN_HEARTBEATS[name], seconds) for name, seconds in asdict(STANDARD_TIMEOUTS).items()
    ]
    assert all(len(row) == 5 and row[3] and row[4] for row in rows)


def test_wait_is_classified_by_the_longest_timeout_it_exceeds() -> None:
    assert [STANDARD_TIMEOUTS.longest_exceeded(seconds) for seconds in (12.4, 12.6, 599.0, 601.0, 1e9)] == [
        None,
        "silent",
        "follow",
        "stall",
        "unfit",
    ]
