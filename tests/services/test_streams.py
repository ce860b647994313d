"""Mailboxes keep order and limits and say why they closed; work side by side ends together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
import pytest

from services.streams import MAILBOX_LENGTH, LinkClosed, Mailbox, until_first_ends

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
