"""Mailboxes keep order and limits and say why they closed; work side by side ends together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import grpc
import pytest

from services.timeouts import Timeouts
from services.transport.streams import (
    MAILBOX_LENGTH,
    Backoff,
    Heartbeats,
    LinkClosed,
    Mailbox,
    until_first_ends,
    write,
)

Result = TypeVar("Result")


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def test_messages_come_out_in_order_also_to_who_waits_already() -> None:
    async def scenario() -> list[int]:
        mailbox: Mailbox[int] = Mailbox()
        waiting = asyncio.ensure_future(mailbox.take())
        await asyncio.sleep(0)
        for number in (1, 2, 3):
            mailbox.put(number)
        return [await waiting, await mailbox.take(), await mailbox.take()]

    assert run(scenario()) == [1, 2, 3]


def test_what_waits_goes_out_before_the_reason_of_the_close() -> None:
    async def scenario() -> None:
        mailbox: Mailbox[str] = Mailbox()
        mailbox.put("first")
        mailbox.close("the first reason", grpc.StatusCode.ABORTED)
        mailbox.close("another reason")
        mailbox.put("too late")
        assert await mailbox.take() == "first"
        for waiting in (mailbox.take(), mailbox.until_closed()):
            with pytest.raises(LinkClosed, match="the first reason") as closed:
                await waiting
            assert closed.value.code is grpc.StatusCode.ABORTED

    run(scenario())


def test_a_close_wakes_who_waits() -> None:
    async def scenario() -> None:
        mailbox: Mailbox[str] = Mailbox()
        waiting = [asyncio.ensure_future(each) for each in (mailbox.take(), mailbox.until_closed())]
        await asyncio.sleep(0)
        mailbox.close("over")
        for each in waiting:
            with pytest.raises(LinkClosed, match="over") as closed:
                await each
            assert closed.value.code is grpc.StatusCode.UNAVAILABLE

    run(scenario())


def test_a_peer_that_reads_nothing_is_cut_off() -> None:
    async def scenario() -> int:
        mailbox: Mailbox[int] = Mailbox()
        for number in range(MAILBOX_LENGTH + 5):
            mailbox.put(number)
        taken = 0
        with pytest.raises(LinkClosed, match=f"left {MAILBOX_LENGTH} messages unread"):
            while True:
                await mailbox.take()
                taken += 1
        return taken

    assert run(scenario()) == MAILBOX_LENGTH


def test_the_first_to_end_ends_the_others() -> None:
    ended: list[str] = []

    async def forever(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def fails() -> None:
        await asyncio.sleep(0)
        raise LinkClosed("gone")

    with pytest.raises(LinkClosed, match="gone"):
        run(until_first_ends(forever("a"), fails(), forever("b")))
    assert sorted(ended) == ["a", "b"]


def test_a_batch_is_what_waits_up_to_a_limit() -> None:
    async def scenario() -> list[list[int]]:
        mailbox: Mailbox[int] = Mailbox()
        waiting = asyncio.ensure_future(mailbox.take_batch(3))
        await asyncio.sleep(0)
        for number in range(5):
            mailbox.put(number)
        mailbox.close("over")
        batches = [await waiting, await mailbox.take_batch(3)]
        with pytest.raises(LinkClosed, match="over"):
            await mailbox.take_batch(3)
        return batches

    assert run(scenario()) == [[0, 1, 2], [3, 4]]


def test_a_mailbox_of_another_length() -> None:
    async def scenario() -> None:
        mailbox: Mailbox[int] = Mailbox(2)
        for number in range(3):
            mailbox.put(number)
        assert await mailbox.take_batch(9) == [0, 1]
        with pytest.raises(LinkClosed, match="left 2 messages unread"):
            await mailbox.take()

    run(scenario())


class EndedCall:
    """A call that had ended when somebody wrote to it."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    async def write(self, message: object) -> None:
        raise asyncio.InvalidStateError("RPC already finished.")

    async def code(self) -> grpc.StatusCode:
        return self._code

    async def details(self) -> str:
        return "gone home"

    async def initial_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()

    trailing_metadata = initial_metadata


def test_who_writes_to_a_stream_that_has_ended_is_told_how_it_ended() -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="gone home"):
        run(write(EndedCall(grpc.StatusCode.UNAVAILABLE), b""))
    with pytest.raises(LinkClosed, match="it ended the stream"):
        run(write(EndedCall(grpc.StatusCode.OK), b""))


def test_attempts_wait_longer_and_longer_up_to_a_limit_and_not_all_the_same() -> None:
    backoff = Backoff(first_seconds=1.0, most_seconds=5.0)
    for most in (1.0, 2.0, 4.0, 5.0, 5.0):
        assert most / 2 <= backoff.next_seconds() <= most
    backoff.limit(0.5)
    drawn = {backoff.next_seconds() for _ in range(20)}
    assert 0.25 <= min(drawn) < max(drawn) <= 0.5
    backoff.limit(5.0)
    backoff.reset()
    assert backoff.next_seconds() <= 1.0


def test_who_is_silent_is_taken_for_dead_but_not_for_a_pause_of_ones_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeouts = Timeouts.from_heartbeat(0.05)
    paused_seconds = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + paused_seconds)
    monkeypatch.setattr("services.transport.streams.time", clock)

    async def scenario() -> None:
        nonlocal paused_seconds
        beats: asyncio.Queue[None] = asyncio.Queue()
        beating = asyncio.ensure_future(Heartbeats(timeouts, lambda: beats.put_nowait(None)).run())
        await beats.get()
        paused_seconds = 2 * timeouts.deaf
        await beats.get()
        assert not beating.done(), "nothing could be heard meanwhile"
        with pytest.raises(LinkClosed, match="silent for"):
            await asyncio.wait_for(beating, 30)
        assert 2 + beats.qsize() > timeouts.deaf / timeouts.beat - 1

    asyncio.run(scenario())
