"""A job's course: its events, its log, its history, its end."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

import tiermesh
from tests.support.web_api import Answer, WebApi, answer_json, event, job_json, problem

ID = "1127-100000-aaaa"
JOB = f"/v1/jobs/{ID}"
EVENTS = f"{JOB}/events"
TIME = "2026-11-27T10:00:00Z"


def stream(*events: str, **options: Any) -> Answer:
    return Answer(200, "".join(events).encode(), {"Content-Type": "text/event-stream"}, **options)


def step_event(number: int, step: int, state: str = "running") -> str:
    job = job_json(step=step, state=state)
    return event(number, "step", time=TIME, text=f"step {step}", job=job, grad_norm=0.5, learning_rate=None)


class TestFollow:
    """The events of a job."""

    def test_events_until_the_end(self, client: Any, api: WebApi) -> None:
        api.put(
            "GET", EVENTS, stream(": a sign of life\n\n", step_event(1, 1), step_event(2, 2, "succeeded"))
        )
        first, last = client.follow(ID)
        assert (first.kind, first.text, first.job.step, first.grad_norm) == ("step", "step 1", 1, 0.5)
        assert (first.learning_rate, first.step_seconds) == (None, None)
        assert last.job.has_ended
        assert api.received[0].headers["accept"] == "text/event-stream"
        assert "last-event-id" not in api.received[0].headers

    def test_a_stream_that_breaks_goes_on_after_its_last_event(self, client: Any, api: WebApi) -> None:
        torn = step_event(2, 2)
        missed = "event: missed\n" + f"data: {json.dumps({'time': TIME, 'text': 'step 2'})}\n\n"
        api.put(
            "GET",
            EVENTS,
            stream(step_event(1, 1), torn, breaks_after=len(step_event(1, 1)) + 20),
            problem(503, "away", "no aggregator answers"),
            stream(missed, step_event(3, 3, "failed")),
        )
        events = list(client.follow(ID))
        assert [(each.kind, each.text) for each in events] == [
            ("step", "step 1"),
            ("missed", "step 2"),
            ("step", "step 3"),
        ]
        assert events[1].job is None
        assert [each.headers.get("last-event-id") for each in api.received] == [None, "1", "1"]

    def test_nothing_since_the_last_event_of_a_job_that_has_ended(self, client: Any, api: WebApi) -> None:
        api.put("GET", EVENTS, stream(step_event(1, 1)), Answer(204))
        assert len(list(client.follow(ID))) == 1

    def test_an_aggregator_that_is_away(self, client: Any, api: WebApi) -> None:
        away = f"event: away\ndata: {json.dumps({'since': TIME, 'detail': 'refused'})}\n\n"
        api.put("GET", EVENTS, stream(away, step_event(1, 1, "succeeded")))
        first, _ = client.follow(ID)
        assert (first.kind, first.text, first.job) == ("away", "refused", None)
        assert first.time is not None and first.time.year == 2026

    def test_a_server_that_never_answers_is_not_waited_for(self, client: Any, api: WebApi) -> None:
        api.put("GET", EVENTS, problem(503, "away", "no aggregator answers"))
        with pytest.raises(tiermesh.Unreachable, match="no aggregator answers"):
            list(client.follow(ID))
        assert len(api.received) == 1

    @pytest.mark.usefixtures("fast_clock")
    def test_an_outage_has_an_end(self, client: Any, api: WebApi) -> None:
        api.put("GET", EVENTS, stream(step_event(1, 1)), problem(503, "away", "no aggregator answers"))
        with pytest.raises(tiermesh.Unreachable, match="no aggregator answers"):
            list(client.follow(ID))

    def test_an_error_that_is_final(self, client: Any, api: WebApi) -> None:
        api.put("GET", EVENTS, stream(step_event(1, 1)), problem(404, "not-found", "no such job"))
        with pytest.raises(tiermesh.NotFound):
            list(client.follow(ID))

    def test_a_stream_that_can_not_go_on(self, client: Any, api: WebApi) -> None:
        revoked = problem(401, "unauthenticated", "the token was revoked").body.decode()
        api.put("GET", EVENTS, stream(step_event(1, 1), f"event: problem\ndata: {revoked}\n\n"))
        with pytest.raises(tiermesh.NotAllowed, match="revoked"):
            list(client.follow(ID))

    @pytest.mark.parametrize(
        "answer",
        [
            Answer(200, b"<html>", {"Content-Type": "text/html"}),
            stream("event: step\ndata: {]\n\n"),
            stream("event: step\ndata: []\n\n"),
            stream('event: step\ndata: {"job": {"job": 1}}\n\n'),
            stream('event: step\ndata: {"time": "yesterday"}\n\n'),
        ],
    )
    def test_what_is_no_stream_of_events(self, client: Any, api: WebApi, answer: Answer) -> None:
        api.put("GET", EVENTS, answer)
        with pytest.raises(tiermesh.Failed, match="expected"):
            list(client.follow(ID))


def test_a_reader_of_events_may_leave(api: WebApi) -> None:
    api.put("GET", EVENTS, stream(*(step_event(number, number) for number in range(100))))
    with tiermesh.Client(api.url, token="a-token") as client:
        for each in client.follow(ID):
            if each.job is not None and each.job.step == 3:
                break
        api.put("GET", JOB, answer_json(job_json()))
        assert client.get(ID).id == ID


class TestWait:
    """The end of a job."""

    def test_until_it_succeeds_over_an_outage(self, client: Any, api: WebApi) -> None:
        running, ended = answer_json(job_json()), answer_json(job_json(state="succeeded"))
        api.put("GET", JOB, running, Answer(is_lost=True), problem(503, "away", "away"), running, ended)
        assert client.wait(ID).state == "succeeded"
        assert len(api.received) == 5

    def test_a_job_that_fails(self, client: Any, api: WebApi) -> None:
        api.put("GET", JOB, answer_json(job_json(state="failed", detail="loss is NaN")))
        with pytest.raises(tiermesh.JobFailed, match=f"job {ID} failed: loss is NaN") as caught:
            client.wait(ID)
        assert caught.value.job.state == "failed"

    def test_a_job_that_takes_longer_than_the_limit(self, client: Any, api: WebApi) -> None:
        api.put("GET", JOB, answer_json(job_json()))
        with pytest.raises(TimeoutError, match="has not ended within"):
            client.wait(ID, timeout_seconds=0.02)


class TestLog:
    """The lines of a log."""

    def test_all_lines(self, client: Any, api: WebApi) -> None:
        api.logs[ID] = "10:00 começo\n10:01 step 1\n10:02".encode()
        assert list(client.log(ID)) == ["10:00 começo", "10:01 step 1", "10:02"]

    def test_a_long_log(self, client: Any, api: WebApi) -> None:
        lines = [f"line {number}" for number in range(20_000)]
        api.logs[ID] = "".join(f"{line}\n" for line in lines).encode()
        assert list(client.log(ID)) == lines

    def test_the_whole_lines_within_the_last_bytes(self, client: Any, api: WebApi) -> None:
        api.logs[ID] = b"first\nsecond\nthird\n"
        assert list(client.log(ID, last_bytes=10)) == ["third"]
        assert list(client.log(ID, last_bytes=1000)) == ["first", "second", "third"]

    def test_an_empty_log(self, client: Any, api: WebApi) -> None:
        api.logs[ID] = b""
        assert list(client.log(ID)) == list(client.log(ID, last_bytes=10)) == []

    def test_a_line_without_end(self, client: Any, api: WebApi) -> None:
        api.logs[ID] = b"x" * (4 << 20)
        with pytest.raises(tiermesh.Failed, match="lines of at most"):
            list(client.log(ID))


def column(name: str, kind: str, values: list[float]) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "base64": base64.b64encode(np.array(values, "<f8").tobytes()).decode(),
    }


def columns(steps: list[int], *more: dict[str, Any], next_from: int | None = None) -> Answer:
    found = [
        column("step", "value", steps),
        column("loss", "value", [np.nan if step == 2 else step / 2 for step in steps]),
        {"name": "waited_for", "kind": "text", "values": ["w1" if step else None for step in steps]},
        *more,
    ]
    return answer_json({"job": ID, "steps_per_row": 1, "columns": found, "next_from": next_from})


class TestMetrics:
    """The history of a job, as arrays."""

    def test_a_row_for_each_step(self, client: Any, api: WebApi) -> None:
        api.put("GET", f"{JOB}/metrics", columns([0, 1, 2, 3]))
        curves = client.metrics(ID)
        assert curves["step"].dtype == np.int64 and curves["loss"].dtype == np.float64
        np.testing.assert_array_equal(curves["step"], [0, 1, 2, 3])
        np.testing.assert_array_equal(curves["loss"], [0, 0.5, np.nan, 1.5])
        np.testing.assert_array_equal(curves["waited_for"], ["", "w1", "w1", "w1"])
        assert api.received[0].query == {"from": ["0"], "encoding": ["base64"]}

    def test_a_long_history_is_read_in_parts(self, client: Any, api: WebApi) -> None:
        parts = columns([5, 6], next_from=7), columns([7, 8], next_from=9), columns([9])
        api.put("GET", f"{JOB}/metrics", *parts)
        curves = client.metrics(ID, ["loss", "mfu"], first_step=5, last_step=9)
        np.testing.assert_array_equal(curves["step"], [5, 6, 7, 8, 9])
        same = {"encoding": ["base64"], "columns": ["loss,mfu"], "to": ["9"]}
        assert [each.query for each in api.received] == [same | {"from": [first]} for first in "579"]

    def test_a_picture_of_some_points(self, client: Any, api: WebApi) -> None:
        more = column("mfu", "min", [0.1]), column("mfu", "max", [0.3]), column("mfu", "mean", [0.2])
        api.put("GET", f"{JOB}/metrics", columns([9], *more))
        curves = client.metrics(ID, points=1)
        assert [curves[name].tolist() for name in ("mfu_min", "mfu", "mfu_max")] == [[0.1], [0.2], [0.3]]
        assert api.received[0].query["points"] == ["1"]

    def test_a_job_without_a_history(self, client: Any, api: WebApi) -> None:
        api.put("GET", f"{JOB}/metrics", columns([]))
        assert [len(each) for each in client.metrics(ID).values()] == [0, 0, 0]

    @pytest.mark.parametrize(
        "answer",
        [
            columns([1], column("mfu", "value", [1, 2])),
            columns([1], {"name": "mfu", "kind": "value", "base64": "%%"}),
            columns([1], {"name": "mfu", "kind": "value", "base64": "AAAA"}),
            columns([1], {"name": "mfu", "kind": "value", "base64": 3}),
            columns([1], {"name": "mfu", "kind": "text"}),
            columns([1], next_from=0),
            answer_json({"columns": [column("loss", "value", [])]}),
            answer_json({"columns": [column("step", "value", [np.nan])]}),
            answer_json({"columns": [[]]}),
            answer_json({}),
        ],
    )
    def test_what_is_no_history(self, client: Any, api: WebApi, answer: Answer) -> None:
        api.put("GET", f"{JOB}/metrics", answer)
        with pytest.raises(tiermesh.Failed, match="expected"):
            client.metrics(ID)
