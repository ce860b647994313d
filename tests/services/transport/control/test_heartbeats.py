"""Heartbeats notice a silent peer, but do not count a pause of their own process."""

from __future__ import annotations

import asyncio
import time
from itertools import count

import pytest

from services.timeouts import Timeouts
from services.transport.control.heartbeats import Heartbeats
from services.transport.links import LinkClosed


def test_a_silent_peer_is_noticed_but_not_during_an_own_pause() -> None:
    timeouts = Timeouts.from_heartbeat(0.05)
    paused_seconds = 0.0

    async def scenario() -> None:
        nonlocal paused_seconds
        beats: asyncio.Queue[None] = asyncio.Queue()
        heartbeats = Heartbeats(
            timeouts, lambda: beats.put_nowait(None), clock=lambda: time.monotonic() + paused_seconds
        )
        beating = asyncio.ensure_future(heartbeats.run())
        await beats.get()
        paused_seconds = 2 * timeouts.deaf
        await beats.get()
        assert not beating.done(), "no message could be read during the pause"
        with pytest.raises(LinkClosed, match="silent for"):
            await asyncio.wait_for(beating, 30)
        assert 2 + beats.qsize() > timeouts.deaf / timeouts.beat - 1

    asyncio.run(scenario())


def test_pauses_at_any_line_are_no_silence() -> None:
    timeouts = Timeouts.from_heartbeat(0.05)
    readings = count()
    beats: list[int] = []

    async def scenario() -> None:
        heartbeats = Heartbeats(
            timeouts, lambda: beats.append(0), clock=lambda: next(readings) * timeouts.deaf / 2
        )
        with pytest.raises(LinkClosed, match="silent for"):
            await asyncio.wait_for(heartbeats.run(), 30)

    asyncio.run(scenario())
    assert len(beats) > timeouts.deaf / timeouts.beat - 1
