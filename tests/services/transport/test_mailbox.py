"""Mailboxes keep the order of messages, limit their number, and report why they closed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
import pytest

from services.transport.links import LinkClosed
from services.transport.mailbox import MAILBOX_MESSAGES, Mailbox

Result = TypeVar("Result")


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def test_messages_are_taken_in_order_by_waiting_and_later_callers() -> None:
    async def scenario() -> list[int]:
        mailbox: Mailbox[int] = Mailbox()
        waiting = asyncio.ensure_future(mailbox.take())
        await asyncio.sleep(0)
        for number in (1, 2, 3):
            mailbox.put(number)
        return [await waiting, await mailbox.take(), await mailbox.take()]

    assert run(scenario()) == [1, 2, 3]


def test_waiting_messages_are_taken_before_the_close_is_raised() -> None:
    async def scenario() -> None:
        mailbox: Mailbox[str] = Mailbox()
        mailbox.put("first")
        mailbox.close("the first reason", grpc.StatusCode.ABORTED)
        mailbox.close("another reason")
        mailbox.put("too late")
        assert await mailbox.take() == "first"
        for waiting in (mailbox.take(), mailbox.wait_closed()):
            with pytest.raises(LinkClosed, match="the first reason") as closed:
                await waiting
            assert closed.value.code is grpc.StatusCode.ABORTED

    run(scenario())


def test_a_close_wakes_waiting_callers() -> None:
    async def scenario() -> None:
        mailbox: Mailbox[str] = Mailbox()
        waiting = [asyncio.ensure_future(each) for each in (mailbox.take(), mailbox.wait_closed())]
        await asyncio.sleep(0)
        mailbox.close("over")
        for each in waiting:
            with pytest.raises(LinkClosed, match="over") as closed:
                await each
            assert closed.value.code is grpc.StatusCode.UNAVAILABLE

    run(scenario())


def test_a_full_mailbox_closes() -> None:
    async def scenario() -> int:
        mailbox: Mailbox[int] = Mailbox()
        for number in range(MAILBOX_MESSAGES + 5):
            mailbox.put(number)
        taken = 0
        with pytest.raises(LinkClosed, match=f"left {MAILBOX_MESSAGES} messages unread"):
            while True:
                await mailbox.take()
                taken += 1
        return taken

    assert run(scenario()) == MAILBOX_MESSAGES


def test_a_batch_has_the_waiting_messages_up_to_a_limit() -> None:
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


def test_the_limit_can_be_set() -> None:
    async def scenario() -> None:
        mailbox: Mailbox[int] = Mailbox(2)
        for number in range(3):
            mailbox.put(number)
        assert await mailbox.take_batch(9) == [0, 1]
        with pytest.raises(LinkClosed, match="left 2 messages unread"):
            await mailbox.take()

    run(scenario())
