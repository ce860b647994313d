"""A target's messages: in order, again after failures, over restarts, bounded, and with nothing lost in silence."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.notifications import sender as sender_module
from aggregator.notifications import webhook as webhook_module
from aggregator.notifications.messages import Notice
from aggregator.notifications.sender import Sender
from aggregator.notifications.targets import TargetFile
from services.runtime import queue_thread
from tests.support.webhook import Webhook, status, webhook


@pytest.fixture(autouse=True)
def quick(no_proxies: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_thread, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(sender_module, "PACE_SECONDS", 0.0)
    monkeypatch.setattr(sender_module, "FIRST_RETRY_SECONDS", 0.0)


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as served:
        yield served


class Target:
    """A target with its sender, and what that has counted and told."""

    def __init__(self, folder: Path, hook: Webhook) -> None:
        self.file = folder / "targets"
        self.file.write_text(f"ops json {hook.url}\n")
        self.file.chmod(0o600)
        self.path = folder / "ops.json"
        self.counted: Counter[str] = Counter()
        self.told: list[tuple[str, str]] = []
        self.has_told = threading.Event()
        self.targets = TargetFile(self.file)

    def sender(self) -> Sender:
        return Sender("ops", self.path, self.targets, count=self._count, tell=self._tell)

    def _count(self, outcome: str, messages: int) -> None:
        self.counted[outcome] += messages

    def _tell(self, job: str, text: str) -> None:
        self.told.append((job, text))
        self.has_told.set()


@pytest.fixture
def target(tmp_path: Path, hook: Webhook) -> Target:
    return Target(tmp_path, hook)


def notice(step: int, event: str = "worker_lost", job: str = "a", seconds: float | None = None) -> Notice:
    seconds = time.time() if seconds is None else seconds
    return Notice(event, job, "tiny", "", "running", step, 10, None, "a line", seconds)


def end(sender: Sender, seconds: float = 60.0) -> bool:
    sender.end()
    return sender.wait(seconds)


def steps(bodies: list[dict[str, int]]) -> list[int]:
    return [each["step"] for each in bodies]


def test_messages_arrive_in_order(target: Target, hook: Webhook) -> None:
    sender = target.sender()
    for step in range(5):
        sender.put(notice(step))
    assert steps(hook.take(5)) == [0, 1, 2, 3, 4]
    assert end(sender)
    assert target.counted == {"sent": 5} and not target.told
    assert json.loads(target.path.read_text()) == {"waiting": [], "told_steps": {}}


def test_a_message_is_tried_again_until_it_is_taken(
    target: Target, hook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    hook.answers += [status(500), status(503), status(200)]
    sender = target.sender()
    sender.put(notice(1))
    sender.put(notice(2))
    bodies = hook.take(4)
    assert steps(bodies) == [1, 1, 1, 2]
    assert len({each["id"] for each in bodies}) == 2, "a receiver knows what comes twice"
    assert end(sender) and target.counted == {"sent": 2}
    assert [each for each in caplog.messages if "trying again" in each] == [
        "notify ops: it answered 500; trying again"
    ]


@pytest.mark.parametrize(
    ("code", "seconds", "expected"),
    [
        (404, None, "not told of worker_lost: it answered 404"),
        (302, None, "it answered 302, a redirect, which is not followed"),
        (500, 0.0, "it answered 500, for more than 60 minutes"),
    ],
)
def test_what_can_t_be_sent_is_counted_and_told(
    target: Target, hook: Webhook, code: int, seconds: float | None, expected: str
) -> None:
    hook.answers.append(status(code))
    sender = target.sender()
    sender.put(notice(1, seconds=seconds))
    sender.put(notice(2))
    assert steps(hook.take(2)) == [1, 2]
    assert end(sender)
    assert target.counted == {"sent": 1, "dropped": 1}
    ((job, text),) = target.told
    assert job == "a" and expected in text and text.startswith("notify ops: ")


def test_a_webhook_that_never_answers_takes_nobody_s_time(
    target: Target, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "MOST_WAITING", 3)
    hook.answers.append(hook.silence)
    sender = target.sender()
    sender.put(notice(0))
    hook.take(1)  # it hangs now
    began = time.monotonic()
    for step in range(1, 8):
        sender.put(notice(step))
    assert time.monotonic() - began < 5
    assert target.counted == {"dropped": 4} and "more than 3 messages wait" in target.told[0][1]
    assert not end(sender, 0.0)
    hook.released.set()
    sender._thread.wait(60)
    assert [each["step"] for each in json.loads(target.path.read_text())["waiting"]] == [0], (
        "a sender that was left writes no more"
    )


def test_the_oldest_make_room_during_an_outage(
    target: Target, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "FIRST_RETRY_SECONDS", 1e9)
    monkeypatch.setattr(sender_module, "MOST_WAITING", 2)
    hook.answers += [status(500)] * 2
    sender = target.sender()
    sender.put(notice(0))
    hook.take(1)
    for step in (1, 2):
        sender.put(notice(step))
        if step == 2:
            assert target.has_told.wait(60)
    assert target.counted == {"dropped": 1}
    assert end(sender)
    assert [each["step"] for each in json.loads(target.path.read_text())["waiting"]] == [1, 2]


def test_a_restart_goes_on_with_what_waits(
    target: Target, hook: Webhook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sender_module, "FIRST_RETRY_SECONDS", 1e9)
    hook.answers += [status(500)] * 2
    sender = target.sender()
    sender.put(notice(1, "loss_spike"))
    sender.put(notice(2, "non_finite", job="b"))
    assert end(sender)
    assert "notify ops: 2 messages not sent yet; the next start goes on with them" in caplog.messages
    sent = hook.received.qsize()
    assert 1 <= sent <= 2
    hook.take(sent)
    hook.answers.clear()
    sender = target.sender()
    assert steps(hook.take(2)) == [1, 2]
    assert end(sender)
    sender = target.sender()
    assert (sender.told_steps("a"), sender.told_steps("b")) == ({"loss_spike": 1}, {"non_finite": 2})
    last = notice(10, "ended", job="b")
    sender.put(Notice(**{**last.to_fields(), "state": "succeeded"}))
    assert end(sender) and steps(hook.take(1)) == [10]
    assert json.loads(target.path.read_text()) == {"waiting": [], "told_steps": {"a": {"loss_spike": 1}}}
    assert hook.received.empty(), "nothing is told twice"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"waiting": [{}], "told_steps": {}}', '{"waiting": 1}'])
def test_a_damaged_file_is_told_and_replaced(
    target: Target, hook: Webhook, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    target.path.write_text(content)
    sender = target.sender()
    assert "messages that waited in it are lost" in caplog.text
    sender.put(notice(1))
    assert steps(hook.take(1)) == [1] and end(sender)


def test_a_full_disk_costs_no_message(
    target: Target, hook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    target.path.mkdir()
    sender = target.sender()
    sender.put(notice(1))
    assert steps(hook.take(1)) == [1] and end(sender)
    assert "can't be written" in caplog.text


def test_a_target_that_is_gone_is_told(target: Target, hook: Webhook) -> None:
    target.file.write_text("other json http://127.0.0.1:1/\n")
    sender = target.sender()
    sender.put(notice(1))
    assert target.has_told.wait(60) and end(sender)
    assert "no longer defines it" in target.told[0][1] and hook.received.empty()


def test_the_secret_is_in_no_log(
    target: Target, hook: Webhook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(webhook_module, "WAIT_SECONDS", 0.1)
    hook.answers += [hook.silence, status(500), status(302, Location=hook.url), status(404), status(200)]
    sender = target.sender()
    for step in range(3):
        sender.put(notice(step))
    hook.take(5)
    assert end(sender)
    shown = caplog.text + repr(target.told) + target.path.read_text()
    assert target.counted == {"dropped": 2, "sent": 1} and Webhook.SECRET not in shown
