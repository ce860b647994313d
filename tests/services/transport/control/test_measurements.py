"""Round trips are measured without the time that a peer holds its answer, and traffic by the growth of its counters."""

from __future__ import annotations

import math

import pytest

from protos.cluster_pb2 import Heartbeat, Hello
from services.transport.control.measurements import SAMPLES, HeartbeatAnswers, MeasuredPeer


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def make_peer(clock: Clock) -> MeasuredPeer:
    return MeasuredPeer("192.0.2.7", Hello(incarnation="i", version="0.3.0"), clock)


def test_the_shortest_round_trip_counts_without_the_peers_pause_and_whatever_its_clock() -> None:
    here, there = Clock(100.0), Clock(5_000.0)
    peer, answers = make_peer(here), HeartbeatAnswers(there)
    for way_seconds in (0.5, 0.002, 0.75):
        asked = Heartbeat(sent_seconds=here.now)
        answers.heard(asked)
        there.now += 2.5
        answer = Heartbeat()
        answers.put_into(answer)
        here.now += way_seconds + 2.5
        peer.heard(answer)
    found = peer.connection()
    assert (found.host, found.version) == ("192.0.2.7", "0.3.0")
    assert found.round_trip_seconds == pytest.approx(0.002)


def test_a_heartbeat_is_answered_once() -> None:
    answers, answer = HeartbeatAnswers(Clock(1.0)), Heartbeat()
    answers.put_into(answer)
    assert answer == Heartbeat(), "none has come yet"
    answers.heard(Heartbeat(sent_seconds=3.0))
    answers.put_into(answer)
    assert answer.answered_seconds == 3.0
    second = Heartbeat()
    answers.put_into(second)
    assert second == Heartbeat(), "the peer must not take a late beat for a slow link"


def test_traffic_is_that_since_the_oldest_heartbeat_that_is_kept() -> None:
    clock = Clock(0.0)
    peer = make_peer(clock)
    for beat in range(3 * SAMPLES):
        clock.now = float(beat)
        rate = 1_000_000 if beat < 2 * SAMPLES else 10
        peer.heard(Heartbeat(sent_bytes=1 + rate * beat, received_bytes=2 + 3 * rate * beat))
    found = peer.connection()
    assert found.sent_bytes_per_second == pytest.approx(10)
    assert found.received_bytes_per_second == pytest.approx(30)


def test_nothing_is_said_of_a_peer_that_says_nothing() -> None:
    peer = make_peer(Clock(9.0))
    for _ in range(3):
        peer.heard(Heartbeat())
    found = peer.connection()
    for field in ("round_trip_seconds", "sent_bytes_per_second", "received_bytes_per_second"):
        assert not found.HasField(field), field


@pytest.mark.parametrize("held_seconds", [-1e300, -math.inf, 1e9, math.inf, math.nan])
def test_an_answer_that_lies_is_not_measured_by(held_seconds: float) -> None:
    peer = make_peer(Clock(9.0))
    peer.heard(Heartbeat(answered_seconds=8.0, held_seconds=held_seconds, sent_bytes=2**64 - 1))
    peer.heard(Heartbeat(sent_bytes=5))
    found = peer.connection()
    assert not found.HasField("round_trip_seconds")
    assert found.sent_bytes_per_second == 0.0, "counters never go down"
