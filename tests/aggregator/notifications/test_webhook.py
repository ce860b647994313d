"""A webhook that refuses, redirects, floods or never answers: one reason, within limits, without its secret."""

from __future__ import annotations

import socket
import time

import pytest

from aggregator.notifications import webhook as webhook_module
from aggregator.notifications.webhook import Failure, post
from tests.support.webhook import Webhook, status, webhook

pytestmark = pytest.mark.usefixtures("no_proxies")

BODY = b'{"text": "a"}'


def test_a_message_arrives() -> None:
    with webhook() as hook:
        for code in (200, 201, 204):
            hook.answers.append(status(code))
            assert post(hook.url, BODY) is None
        assert hook.take(3) == [{"text": "a"}] * 3


@pytest.mark.parametrize(
    ("code", "is_final"),
    [
        (500, False),
        (503, False),
        (429, False),
        (408, False),
        (400, True),
        (403, True),
        (404, True),
        (410, True),
    ],
)
def test_a_refusal_is_told(code: int, is_final: bool) -> None:
    with webhook() as hook:
        hook.answers.append(status(code))
        assert post(hook.url, BODY) == Failure(f"it answered {code}", is_final=is_final)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(code: int) -> None:
    with webhook() as hook, webhook() as other:
        hook.answers.append(status(code, Location=other.url))
        assert post(hook.url, BODY) == Failure(
            f"it answered {code}, a redirect, which is not followed", is_final=True
        )
        assert other.received.empty()


def test_a_huge_answer_is_not_read() -> None:
    with webhook() as hook:
        hook.answers.append(hook.flood)
        assert post(hook.url, BODY) is None


def test_one_that_never_answers_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_module, "WAIT_SECONDS", 0.1)
    with webhook() as hook:
        hook.answers.append(hook.silence)
        began = time.monotonic()
        assert post(hook.url, BODY) == Failure("no answer within 0.1 s")
        assert time.monotonic() - began < 30
    with socket.create_server(("127.0.0.1", 0)) as full:  # accepts nothing
        url = f"http://127.0.0.1:{full.getsockname()[1]}/{Webhook.SECRET}"
        assert post(url, BODY) == Failure("no answer within 0.1 s")


def test_one_that_drips_its_answers_head_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_module, "WAIT_SECONDS", 0.3)
    with webhook() as hook:
        hook.answers.append(hook.drip)
        assert post(hook.url, BODY) == Failure("no answer within 0.3 s")
        assert not hook.released.is_set(), "it would have gone on"
        assert post(hook.url, BODY) is None


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "https://127.0.0.1:1/", "http://a b/"])
def test_no_reason_has_the_secret(url: str) -> None:
    failure = post(url + Webhook.SECRET, BODY)
    assert failure is not None and not failure.is_final
    assert Webhook.SECRET not in failure.reason and failure.reason


def test_what_is_no_http_is_a_reason() -> None:
    with webhook() as hook:
        hook.answers.append(lambda request: request.wfile.write(b"\x00" * 100_000) and None)
        failure = post(hook.url, BODY)
        assert failure is not None and Webhook.SECRET not in failure.reason
