"""The ladder of timeouts: its order, and what docs/operations.md says of it."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

import pytest

from services.errors import Refused
from services.timeouts import STANDARD_TIMEOUTS, TIMEOUTS_IN_HEARTBEATS, Timeouts


def test_every_rung_is_a_multiple_of_the_heartbeat_and_longer_than_the_one_below() -> None:
    assert [field.name for field in fields(Timeouts)] == list(TIMEOUTS_IN_HEARTBEATS)
    for heartbeat in (0.1, 5.0, 600.0):
        rungs = asdict(Timeouts.from_heartbeat(heartbeat))
        assert rungs == {
            name: pytest.approx(count * heartbeat) for name, count in TIMEOUTS_IN_HEARTBEATS.items()
        }
        assert sorted(set(rungs.values())) == list(rungs.values())


def test_a_dead_worker_is_seen_within_three_heartbeats() -> None:
    assert STANDARD_TIMEOUTS.silent + STANDARD_TIMEOUTS.tick <= 3 * 5.0


def test_a_worker_that_lost_two_beats_in_a_row_is_not_dead() -> None:
    assert 3 * STANDARD_TIMEOUTS.beat + STANDARD_TIMEOUTS.tick < STANDARD_TIMEOUTS.silent


@pytest.mark.parametrize("heartbeat", [0.0, -1.0, float("nan"), float("inf")])
def test_a_heartbeat_that_is_no_time_is_refused(heartbeat: float) -> None:
    with pytest.raises(Refused, match="expected more than 0; 5 is usual"):
        Timeouts.from_heartbeat(heartbeat)


def test_a_rung_may_be_set_by_hand_while_the_order_holds() -> None:
    assert Timeouts.from_heartbeat(5.0, {"stall": 900.0}).stall == 900.0


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"silent": 30.0}, "timeout lapse: 15 s, expected more than silent \\(30 s\\), the rung below"),
        ({"lapse": 26.0}, "timeout ping: 20 s, expected more than lapse"),
        ({"takeover": 15.0}, "timeout takeover: 15 s, expected more than ping"),
        ({"stall": 180.0}, "timeout stall: 180 s, expected more than follow \\(180 s\\)"),
        ({"tick": 0.0}, "timeout tick: 0 s, expected more than 0"),
        ({"unfit": float("inf")}, "timeout unfit: inf s, expected"),
        ({"silent": float("nan")}, "timeout silent: nan s, expected"),
        ({"silence": 3.0}, "timeout silence: no such rung; expected one of tick, beat, "),
    ],
)
def test_an_order_that_is_broken_is_refused(overrides: dict[str, float], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        Timeouts.from_heartbeat(5.0, overrides)


def test_the_table_for_people_is_the_code_s() -> None:
    page = (Path(__file__).parents[2] / "docs" / "timeouts.md").read_text()
    section = page.partition("# Timeouts")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if "| `" in line
    ]
    told = [(row[0].strip("` *"), float(row[1]), float(row[2].removesuffix(" s"))) for row in rows]
    assert told == [
        (name, TIMEOUTS_IN_HEARTBEATS[name], seconds) for name, seconds in asdict(STANDARD_TIMEOUTS).items()
    ]
    assert all(len(row) == 5 and row[3] and row[4] for row in rows)


def test_a_wait_is_told_by_the_highest_rung_that_it_has_passed() -> None:
    assert [STANDARD_TIMEOUTS.passed(seconds) for seconds in (12.4, 12.6, 599.0, 601.0, 1e9)] == [
        "",
        "silent",
        "follow",
        "stall",
        "unfit",
    ]
