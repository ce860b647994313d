"""Errors: which exception an answer is, what it carries, and what is refused before anything is sent."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import tiermesh
from tests.support.ports import free_port
from tests.support.web_api import TOKEN, Answer, WebApi, answer_json, job_json, problem

JOB = "/v1/jobs/a"
PARTS = {
    "field": "training_config.max_steps",
    "value": "-1",
    "expected": "a number above 0",
    "fix": "correct it",
}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, tiermesh.Refused),
        (401, tiermesh.NotAllowed),
        (403, tiermesh.NotAllowed),
        (404, tiermesh.NotFound),
        (409, tiermesh.Refused),
        (422, tiermesh.Refused),
        (429, tiermesh.NotYet),
        (500, tiermesh.Failed),
        (502, tiermesh.Failed),
        (503, tiermesh.Unreachable),
    ],
)
def test_problems_are_exceptions(client: Any, api: WebApi, status: int, kind: type) -> None:
    api.put("GET", JOB, problem(status, "any", "a sentence", **PARTS))
    with pytest.raises(tiermesh.TiermeshError, match="a sentence") as caught:
        client.get("a")
    error = caught.value
    assert type(error) is kind
    assert {name: getattr(error, name) for name in PARTS} == PARTS
    assert error.status == status


def test_parts_that_a_problem_lacks_are_none(client: Any, api: WebApi) -> None:
    api.put("GET", JOB, problem(422, "refused", "two\nlines\x1b[31m", field=None, value=3))
    with pytest.raises(tiermesh.Refused) as caught:
        client.get("a")
    assert (caught.value.field, caught.value.value, caught.value.fix) == (None, None, None)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"detail": 1}', b"[" * 9000, b"\xff"])
def test_answers_of_something_else(client: Any, api: WebApi, body: bytes) -> None:
    api.put("GET", JOB, Answer(502, body))
    with pytest.raises(tiermesh.Failed, match="no problem details, expected a `tiermesh web`"):
        client.get("a")
    api.put("GET", JOB, Answer(200, body))
    with pytest.raises(tiermesh.Failed, match="expected"):
        client.get("a")


def test_redirects_are_not_followed(client: Any, api: WebApi) -> None:
    api.put("GET", JOB, Answer(302, b"", {"Location": "/v1/jobs/b"}))
    with pytest.raises(tiermesh.Failed):
        client.get("a")
    assert len(api.received) == 1


def test_nobody_there() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with tiermesh.Client(url, token=TOKEN) as client, pytest.raises(tiermesh.Unreachable) as caught:
        client.submit({"training_config": {}})
    assert (caught.value.field, caught.value.value) == ("url", url)
    assert not caught.value.was_sent


def test_silence_has_an_end(api: WebApi, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    silent = threading.Event()

    def answer(request: Any) -> Answer:
        silent.wait(20)
        return answer_json(job_json())

    monkeypatch.setattr(api, "answer", answer)
    with tiermesh.Client(api.url, token=TOKEN, timeout_seconds=0.05) as client:
        with pytest.raises(tiermesh.Unreachable, match="no answer in time"):
            client.get("a")
        silent.set()


@pytest.mark.parametrize(
    "url",
    ["", "head:7080", "ftp://head", "http://", "http://head/path", "http://a:b@127.0.0.1", 7, "http://h:x"],
)
def test_addresses_that_are_none(url: Any) -> None:
    with pytest.raises(tiermesh.Refused) as caught:
        tiermesh.Client(url)
    assert caught.value.field == "url" and caught.value.fix


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_limits_that_are_none(seconds: float) -> None:
    with pytest.raises(tiermesh.Refused, match="timeout_seconds"):
        tiermesh.Client(timeout_seconds=seconds)


def test_exceptions_can_be_sent_to_another_process() -> None:
    job = tiermesh.Job.read(job_json(state="failed"))
    error = pickle.loads(pickle.dumps(tiermesh.JobFailed("job a failed", job)))
    assert (str(error), error.job) == ("job a failed", job)
    refused = pickle.loads(pickle.dumps(tiermesh.Refused("text", field="a", fix="b")))
    assert (str(refused), refused.field, refused.fix) == ("text", "a", "b")


class TestToken:
    """The caller's token: which one is taken, and where it may go."""

    @pytest.fixture
    def token_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("HOME", str(tmp_path))
        file = tmp_path / ".tiermesh" / "web-token"
        file.parent.mkdir()
        file.write_text(f"{TOKEN}\n")
        file.chmod(0o600)
        return file

    @pytest.mark.usefixtures("token_file")
    def test_that_of_this_host_is_found(self, api: WebApi) -> None:
        api.put("GET", JOB, answer_json(job_json()))
        with tiermesh.Client(api.url) as client:
            client.get("a")

    @pytest.mark.usefixtures("token_file")
    def test_it_goes_to_no_other_host(self) -> None:
        with tiermesh.Client("http://192.0.2.1:7080") as client:
            assert "Authorization" not in client._transport._client.headers
        with tiermesh.Client("https://127.0.0.1:7080") as client:
            assert "Authorization" not in client._transport._client.headers

    def test_a_token_does_not_cross_the_network_in_plain_text(self) -> None:
        with pytest.raises(tiermesh.Refused, match="plain text"):
            tiermesh.Client("http://head:7080", token=TOKEN)

    def test_a_file_that_others_can_read(self, token_file: Path) -> None:
        token_file.chmod(0o640)
        with pytest.raises(tiermesh.Refused, match="only you can read") as caught:
            tiermesh.Client()
        assert caught.value.value == str(token_file)

    def test_without_a_file_the_server_decides(
        self, api: WebApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        with tiermesh.Client(api.url) as client, pytest.raises(tiermesh.NotAllowed):
            client.get("a")

    @pytest.mark.parametrize("token", ["a b", "a\r\nX-Header: 1", "ü"])
    def test_a_token_that_is_none_is_not_shown(self, token: str) -> None:
        with pytest.raises(tiermesh.Refused) as caught:
            tiermesh.Client(token=token)
        assert token not in str(caught.value)


def test_values_that_are_no_json(client: Any, api: WebApi) -> None:
    with pytest.raises(tiermesh.Refused):
        client.set_priority("a", float("nan"))
    with pytest.raises(tiermesh.Refused) as caught:
        client.submit({}, {"training_config.max_steps": {1, 2}})
    assert caught.value.field == "overrides"
    assert not api.received


def test_the_answer_has_a_limit(client: Any, api: WebApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiermesh.exchange._ANSWER_BYTES", 1000)
    api.put("GET", JOB, Answer(200, json.dumps(["x" * 2000]).encode()))
    with pytest.raises(tiermesh.Failed, match="at most 1000"):
        client.get("a")
