"""The account of workers' time: nothing is lost or counted twice, and it stays as small as an hour is long."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.worker_times import MINUTES, WorkerTimes
from services.protocol.activities import OF_JOB, Activity, efficiency

COMPUTING, WIRE, NO_JOB = Activity.COMPUTING, Activity.WIRE, Activity.NO_JOB


def times_of_a_job() -> WorkerTimes:
    times = WorkerTimes()
    times.begin_job("a", {})
    return times


def test_what_a_report_leaves_of_a_lease_was_spent_on_the_wire() -> None:
    times = times_of_a_job()
    times.note(1, COMPUTING, 100.0, job="a")
    assert times.of_job("a", 104.0) == {"computing": 4.0}, "before the report it counts as computing"
    times.note(1, WIRE, 110.0, computed_seconds=7.0, job="a")
    times.note(1, Activity.UPDATE, 111.0, job="a")
    assert times.of_job("a", 112.0) == pytest.approx({"computing": 7.0, "wire": 4.0, "update": 1.0})
    assert efficiency(times.of_job("a", 112.0)) == pytest.approx(7 / 12)


def test_each_of_several_leases_is_settled_by_its_own_report() -> None:
    times = times_of_a_job()
    times.note(1, COMPUTING, 0.0, job="a")
    times.note(1, COMPUTING, 3.0, computed_seconds=2.0, job="a")
    times.note(1, Activity.OTHERS, 8.0, computed_seconds=5.0, job="a")
    assert times.of_job("a", 8.0) == pytest.approx({"computing": 7.0, "wire": 1.0})


@pytest.mark.parametrize(
    ("told", "computing"), [(math.inf, 10.0), (math.nan, 10.0), (-5.0, 0.0), (1e300, 10.0)]
)
def test_no_report_counts_more_than_the_time_there_was(told: float, computing: float) -> None:
    times = WorkerTimes()
    times.note(1, COMPUTING, 100.0)
    times.note(1, NO_JOB, 110.0, computed_seconds=told)
    found = times.last_hour(110.0)
    assert found.get("computing", 0.0) == pytest.approx(computing)
    assert sum(found.values()) == pytest.approx(10.0)


def test_each_job_counts_its_own_workers_and_goes_on_from_its_record() -> None:
    times = times_of_a_job()
    times.note(1, COMPUTING, 0.0, job="a")
    times.note(2, Activity.REFUSED, 0.0)
    times.begin_job("b", {"computing": 30.0, "wire": 10.0, "invented": 5.0})
    times.note(1, COMPUTING, 50.0, job="b")
    assert times.of_job("a", 60.0) == pytest.approx({"computing": 50.0})
    assert times.of_job("b", 60.0) == pytest.approx({"computing": 40.0, "wire": 10.0})
    times.drop(1, 60.0)
    assert times.of_job("b", 99.0) == pytest.approx({"computing": 40.0, "wire": 10.0})
    assert times.last_hour(60.0) == pytest.approx({"computing": 60.0, "refused": 60.0})


def test_idle_workers_are_counted_by_reason() -> None:
    times = WorkerTimes()
    for session, activity in enumerate((NO_JOB, NO_JOB, Activity.REFUSED, COMPUTING, WIRE)):
        times.note(session, activity, 0.0)
    counts = times.count_idle()
    assert {reason: count for reason, count in counts.items() if count} == {"no_job": 2, "refused": 1}
    assert "computing" not in counts and counts["spare"] == 0


_changes = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(list(Activity)),
        st.floats(0.0, 400.0),
        st.none() | st.floats(-10.0, 500.0),
    ),
    max_size=60,
)


@given(_changes)
def test_all_time_is_counted_once_and_an_hour_is_kept(
    changes: list[tuple[int, Activity, float, float | None]],
) -> None:
    """A model that samples every quarter second is too slow; this one sums the intervals of each worker."""
    times, now, since = times_of_a_job(), 0.0, {}
    intervals: list[tuple[float, float]] = []
    last: dict[int, Activity] = {}
    of_job = 0.0
    for session, activity, seconds, computed in changes:
        now += seconds
        times.note(session, activity, now, computed, job="a")
        if session in since:
            intervals.append((since[session], now))
            of_job += (now - since[session]) * (last[session] in OF_JOB)
        since[session], last[session] = now, activity
    intervals += [(start, now) for start in since.values()]
    of_job += sum(now - start for session, start in since.items() if last[session] in OF_JOB)
    first = 60.0 * (int(now // 60) - MINUTES + 1)
    expected = sum(max(0.0, end - max(start, first)) for start, end in intervals)
    assert sum(times.last_hour(now).values()) == pytest.approx(expected, abs=1e-6)
    assert sum(times.of_job("a", now).values()) == pytest.approx(of_job, abs=1e-6)
    assert len(times._minutes) <= MINUTES + 1
