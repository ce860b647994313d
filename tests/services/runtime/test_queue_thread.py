"""A thread with a queue: items in order, in batches, never more than wait, and an end that leaves none."""

from __future__ import annotations

import threading

import pytest

from services.runtime import queue_thread
from services.runtime.queue_thread import QueueThread


def test_items_are_handled_in_order_and_none_is_left() -> None:
    calls: list[object] = []
    thread: QueueThread[int] = QueueThread(
        "test",
        lambda items: calls.extend(items),
        most_waiting=100,
        most_at_once=3,
        first=lambda: calls.append("first"),
        last=lambda: calls.append("last"),
    )
    assert all(thread.put(number) for number in range(50))
    thread.end()
    assert thread.wait(60)
    assert calls == ["first", *range(50), "last"]


def test_a_full_queue_refuses_at_once() -> None:
    goes_on, entered = threading.Event(), threading.Event()
    batches: list[list[int]] = []

    def handle(items: list[int]) -> None:
        entered.set()
        assert goes_on.wait(60)
        batches.append(items)

    thread = QueueThread("test", handle, most_waiting=4, most_at_once=3)
    assert thread.put(0) and entered.wait(60)
    assert [thread.put(number) for number in range(1, 7)] == [True] * 4 + [False] * 2
    thread.end()
    assert not thread.wait(0)
    goes_on.set()
    assert thread.wait(60)
    assert [each for each in batches if each] == [[0], [1, 2, 3], [4]]


def test_it_is_called_without_items_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_thread, "_POLL_SECONDS", 0.001)
    idle = threading.Event()
    thread: QueueThread[int] = QueueThread(
        "test", lambda items: None if items else idle.set(), most_waiting=1, most_at_once=1
    )
    assert idle.wait(60)
    thread.end()
    assert thread.wait(60)
