"""Tests of succession: with any delays, a leader stops before a standby takes over."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.core.succession import LeaderSighting, Standbys, Succession
from services.timeouts import STANDARD_TIMEOUTS, Timeouts

TIMEOUTS = STANDARD_TIMEOUTS


def sight(
    beat: int, *, epoch: int = 1, takeover_seconds: float = TIMEOUTS.takeover, known: bool = True
) -> LeaderSighting:
    return LeaderSighting(epoch, beat, "a", takeover_seconds, known)


def test_a_leader_that_beats_is_left_alone_and_one_that_does_not_is_succeeded() -> None:
    succession = Succession(10.0)
    assert not any(succession.is_due(sight(beat, takeover_seconds=9.0), float(beat)) for beat in range(100))
    assert not succession.is_due(sight(99, takeover_seconds=9.0), 109.0)
    assert succession.is_due(sight(99, takeover_seconds=9.0), 109.1)
    assert succession.silent_seconds(109.1) > 10.0


def test_the_longer_takeover_time_of_the_leader_counts() -> None:
    succession = Succession(1.0)
    assert not succession.is_due(sight(1, takeover_seconds=30.0), 0.0)
    assert not succession.is_due(sight(1, takeover_seconds=30.0), 29.0)
    assert succession.is_due(sight(1, takeover_seconds=30.0), 30.1)


def test_a_standby_takes_over_at_once_without_a_leader() -> None:
    assert Succession(10.0).is_due(LeaderSighting(0, 0, "", 0.0, False), 0.0)
    assert Succession(10.0).is_due(sight(7, takeover_seconds=0.0), 0.0)


def test_a_newer_leader_is_given_the_same_time() -> None:
    succession = Succession(10.0)
    succession.is_due(sight(5), 0.0)
    assert not succession.is_due(sight(5, epoch=2), 1000.0)
    assert succession.is_due(sight(5, epoch=2), 1000.0 + TIMEOUTS.takeover + 1)


def test_a_forgotten_standby_waits_again() -> None:
    """Check that a standby that was frozen waits again, since the leader beats only for standbys it knows."""
    succession = Succession(10.0)
    succession.is_due(sight(5), 0.0)
    assert not succession.is_due(sight(5, known=False), 1000.0)
    assert succession.is_due(sight(5), 1000.0 + TIMEOUTS.takeover + 1)


DELAYS = st.one_of(st.floats(0.0, 2.0), st.floats(0.0, 60.0))


@settings(max_examples=500, deadline=None)
@given(
    heartbeat=st.sampled_from([0.5, 5.0]),
    beats=st.lists(st.tuples(DELAYS, DELAYS), max_size=20),
    looks=st.lists(DELAYS, min_size=30, max_size=60),
)
def test_a_leader_has_stopped_before_a_standby_takes_over(
    heartbeat: float, beats: list[tuple[float, float]], looks: list[float]
) -> None:
    """Check all delays of beats and looks, in heartbeats.

    A beat begins after a pause and reaches the storage some time later. The leader acts until `lapse` after the
    beginning of the newest beat on the storage. The standby's clock starts at another time.
    """
    timeouts = Timeouts.from_heartbeat(heartbeat)
    now, led, written = 0.0, 0.0, [(0.0, 0.0)]  # for each beat, when it reached the storage and when it began
    for pause, duration in beats:
        began = now + pause * heartbeat
        if began > led + timeouts.lapse:
            break  # it has stopped
        now = began + duration * heartbeat
        written.append((now, began))
        if now > led + timeouts.lapse:
            break  # it had stopped while this beat was on its way
        led = began
    succession = Succession(timeouts.takeover)
    at = 0.0
    for pause in looks:
        at += pause * heartbeat
        seen = [began for there, began in written if there <= at]
        if succession.is_due(sight(len(seen), takeover_seconds=timeouts.takeover), at + 12345.0):
            assert at > seen[-1] + timeouts.lapse
            return


def test_standbys_are_known_while_they_look() -> None:
    standbys = Standbys(forget_seconds=10.0)
    assert not standbys
    assert standbys.update({"b": 0}, 0.0) == []
    assert standbys
    assert standbys.update({"b": 1, "c": 0}, 5.0) == []
    assert standbys.silent_seconds(6.0) == {"b": 1.0, "c": 1.0}
    assert standbys.update({"b": 2, "c": 0}, 15.5) == ["c"]
    assert standbys.update({"b": 3}, 16.0) == []
    assert list(standbys.silent_seconds(16.0)) == ["b"]
    assert standbys.update({}, 17.0) == []
    assert not standbys
