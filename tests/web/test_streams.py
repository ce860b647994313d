"""Events, logs, metrics and checkpoints: continued where they broke off, in ranges, at their reader's pace."""

from __future__ import annotations

import base64
import http.client
import json
import select
import socket
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos import jobs_pb2
from tests.support.fake_aggregator import FakeAggregator
from tests.support.web_server import Web, serving_web
from web.events import EventId

FILES = {"config.json": b'{"a": 1}', "model.safetensors": bytes(range(250)) * 20}


def event(kind: str, seconds: float, **fields: Any) -> jobs_pb2.JobEvent:
    job = jobs_pb2.Job(id="job-1", state=fields.pop("state", jobs_pb2.RUNNING))
    return jobs_pb2.JobEvent(job=job, kind=kind, seconds=seconds, text=f"{kind}\nline", **fields)


END = event("state", 5.0, state=jobs_pb2.SUCCEEDED)


def parsed(body: bytes) -> list[tuple[str, str, dict[str, Any]]]:
    """Return id, kind and data of server-sent events."""
    found = []
    for block in body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
    return found


def test_a_job_is_followed_to_its_end(web: Web, fake: FakeAggregator) -> None:
    fake.events = [[event("state", 2.0), event("step", 2.5, grad_norm=1.5), event("audit", 2.5), END]]
    answer = web.get("/v1/jobs/job-1/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = parsed(answer.body)
    assert [(number, kind) for number, kind, _ in events] == [
        ("2000.0", "state"), ("2500.1", "step"), ("2500.2", "audit"), ("5000.1", "state"),
    ]  # fmt: skip
    assert events[1][2]["grad_norm"] == 1.5
    assert events[3][2]["job"]["state"] == "succeeded"


def test_what_was_missed_is_told_once(web: Web, fake: FakeAggregator) -> None:
    fake.events = [[event("state", 4.0), END]]
    events = parsed(web.get("/v1/jobs/job-1/events", Last_Event_ID="1000.1").body)
    assert [(number, kind) for number, kind, _ in events] == [
        ("1000.2", "missed"), ("4000.0", "state"), ("5000.1", "state"),
    ]  # fmt: skip
    assert events[0][2]["text"] == "second line"


def test_a_reader_that_has_all_of_an_ended_job_is_told_not_to_come_back(
    web: Web, fake: FakeAggregator
) -> None:
    fake.events = [[END]]
    assert web.get("/v1/jobs/job-1/events", Last_Event_ID="9000.1").status == 204


def test_a_stream_outlives_an_outage_of_the_aggregator(
    web: Web, fake: FakeAggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.events.RETRY_SECONDS", 0.01)
    fake.events = [[event("state", 0.5), event("step", 0.9)], [event("state", 4.0), END]]
    kinds = [kind for _, kind, _ in parsed(web.get("/v1/jobs/job-1/events").body)]
    assert kinds == ["state", "step", "away", "missed", "missed", "state", "state"]


def test_many_streams_keep_no_other_caller_waiting(web: Web) -> None:
    """Open more than a connection to the aggregator takes, and then make calls."""
    with ExitStack() as stack:
        for _ in range(100):
            reader = http.client.HTTPConnection("127.0.0.1", web.port, timeout=5)
            stack.callback(reader.close)
            reader.request("GET", "/v1/jobs/job-1/events", headers={"Authorization": f"Bearer {web.token}"})
            assert reader.getresponse().readline().startswith(b"id: ")
        assert web.get("/v1/jobs/job-1").status == 200


def test_silence_has_heartbeats(web: Web, fake: FakeAggregator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.events.HEARTBEAT_SECONDS", 0.05)
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=10)
    connection.request("GET", "/v1/jobs/job-1/events", headers={"Authorization": f"Bearer {web.token}"})
    lines = iter(connection.getresponse().readline, b"")
    assert next(line for line in lines if line.startswith(b":")) == b": heartbeat\n"
    connection.close()


@pytest.mark.parametrize("text", ["x", "1", "1.2.3", "-1.0", "9" * 40 + ".1"])
def test_an_id_of_no_event_is_refused(web: Web, text: str) -> None:
    assert web.get("/v1/jobs/job-1/events", Last_Event_ID=text).json["field"] == "Last-Event-ID"


def test_events_of_one_millisecond_have_ids_of_their_own() -> None:
    assert EventId(5, 2).following(0.005) == EventId(5, 3)
    assert EventId(5, 2).following(0.006) == EventId(6, 1)


LOG = b"".join(b"1970-01-01T00:00:01.000Z %s line\n" % each for each in (b"first", b"timing", b"second"))


@pytest.mark.parametrize(
    ("wanted", "status", "body", "place"),
    [
        ("", 200, LOG, None),
        ("bytes=3-9", 206, LOG[3:10], "bytes 3-9/*"),
        ("bytes=40-", 206, LOG[40:], f"bytes 40-{len(LOG) - 1}/{len(LOG)}"),
        ("bytes=-12", 206, LOG[-12:], f"bytes {len(LOG) - 12}-{len(LOG) - 1}/{len(LOG)}"),
        ("bytes=9-3", 200, LOG, None),
        ("lines=1-2", 200, LOG, None),
        ("bytes=1-2,5-6", 200, LOG, None),
        ("bytes=5000-", 416, None, f"bytes */{len(LOG)}"),
    ],
)
def test_a_log_is_read_in_ranges(
    web: Web, wanted: str, status: int, body: bytes | None, place: str | None
) -> None:
    answer = web.get("/v1/jobs/job-1/log", Range=wanted)
    assert (answer.status, answer.headers.get("content-range")) == (status, place)
    assert body is None or answer.body == body


def test_the_newest_lines_of_a_log_are_asked_for_as_such(web: Web) -> None:
    newest = b"1970-01-01T00:00:01.000Z second line\n"
    assert web.get("/v1/jobs/job-1/log?tail=1").body == newest
    assert web.get("/v1/jobs/job-1/log?tail=1", Range="bytes=3-9").body == newest
    assert web.get("/v1/jobs/job-1/log?tail=10000").body == LOG
    for wrong in ("-1", "10001", "x"):
        assert web.get(f"/v1/jobs/job-1/log?tail={wrong}").status == 422


@pytest.fixture
def stored(fake: FakeAggregator) -> FakeAggregator:
    fake.files, fake.step = FILES, 0
    return fake


def test_checkpoints_are_listed_with_their_files(web: Web, stored: FakeAggregator) -> None:
    (found,) = web.get("/v1/jobs/job-1/checkpoints").json["checkpoints"]
    assert {name: each["bytes"] for name, each in found["files"].items()} == {
        name: len(content) for name, content in FILES.items()
    }


@pytest.mark.parametrize(
    "wanted", ["", "bytes=0-0", "bytes=990-2010", "bytes=4999-", "bytes=-7", "bytes=-9999"]
)
def test_a_file_of_a_checkpoint_is_read_in_ranges(web: Web, stored: FakeAggregator, wanted: str) -> None:
    content = FILES["model.safetensors"]
    answer = web.get("/v1/jobs/job-1/checkpoints/0/model.safetensors", Range=wanted)
    first, last = 0, len(content) - 1
    if wanted:
        first, last = map(int, answer.headers["content-range"].split(" ")[1].split("/")[0].split("-"))
    assert (answer.status, answer.body) == (206 if wanted else 200, content[first : last + 1])
    again = web.get("/v1/jobs/job-1/checkpoints/0/model.safetensors", If_None_Match=answer.headers["etag"])
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    "path",
    ["0/nothing", "0/..%2F..%2Fetc%2Fpasswd", "0/%2e%2e", "-1/config.json", "x/config.json", "0/a%00b"],
)
def test_another_path_is_no_file_of_a_checkpoint(web: Web, stored: FakeAggregator, path: str) -> None:
    answer = web.get(f"/v1/jobs/job-1/checkpoints/{path}")
    assert answer.status in (404, 422)
    assert answer.kind in ("not-found", "refused")


def test_metrics_are_columns(web: Web, fake: FakeAggregator) -> None:
    def part(steps: list[float], losses: list[float], names: list[str]) -> jobs_pb2.MetricsRows:
        return jobs_pb2.MetricsRows(
            steps_per_row=1,
            columns=[
                jobs_pb2.MetricsColumn(name="step", kind="value", values=np.array(steps, "<f8").tobytes()),
                jobs_pb2.MetricsColumn(name="loss", kind="value", values=np.array(losses, "<f8").tobytes()),
                jobs_pb2.MetricsColumn(name="waited_for", kind="text", texts=names),
            ],
        )

    fake.metrics = [part([1, 2], [0.5, float("nan")], ["w", ""]), part([3], [0.25], ["v"])]
    answer = web.get("/v1/jobs/job-1/metrics?columns=loss,waited_for&from=1&to=3").json
    assert [column["values"] for column in answer["columns"]] == [
        [1, 2, 3], [0.5, None, 0.25], ["w", None, "v"],
    ]  # fmt: skip
    assert answer["next_from"] is None
    coded = web.get("/v1/jobs/job-1/metrics?encoding=base64").json["columns"][0]["base64"]
    assert struct.unpack("<3d", base64.b64decode(coded)) == (1, 2, 3)
    assert [*fake.metrics_requests[0].columns] == ["loss", "waited_for"]


def test_more_rows_than_an_answer_has_go_on_where_it_ends(
    web: Web, fake: FakeAggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.streams.MOST_ROWS", 2)
    values = struct.pack("<3d", 7, 8, 9)
    column = jobs_pb2.MetricsColumn(name="step", kind="value", values=values)
    fake.metrics = [jobs_pb2.MetricsRows(columns=[column], steps_per_row=1)]
    answer = web.get("/v1/jobs/job-1/metrics").json
    assert (answer["columns"][0]["values"], answer["next_from"]) == ([7, 8], 9)
    assert web.get("/v1/jobs/job-1/metrics?to=8").json["next_from"] is None


def test_an_aggregator_that_is_away_is_told_and_found_again(fake: FakeAggregator, tmp_path: Path) -> None:
    with serving_web(tmp_path, "127.0.0.1:9") as web:
        answer = web.get("/v1/cluster")
        assert (answer.status, answer.kind, answer.headers["retry-after"]) == (503, "away", "2")
        health = web.get("/v1/health").json
        assert (health["status"], health["aggregator"]) == ("ok", "away")
        assert health["away_since"] == answer.json["since"]
    with serving_web(tmp_path, f"127.0.0.1:9,{fake.address}") as web:
        assert web.get("/v1/cluster").status == 200  # of the standby that leads


@pytest.mark.parametrize("path", ["checkpoints/0/model.safetensors", "events"])
def test_a_reader_that_takes_nothing_is_cut_off_and_others_go_on(
    web: Web, stored: FakeAggregator, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("web.port.TAKING_SECONDS", 0.1)
    stored.files, stored.piece_bytes = {"model.safetensors": bytes(32 << 20)}, 1 << 20
    told = [event("step", 2.0 + number / 1000) for number in range(3000)]
    for each in told:
        each.text = "x" * 2000
    stored.events = [[event("state", 1.0), *told, END]]
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", web.port))
        path = f"/v1/jobs/job-1/{path}"
        slow.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {web.token}\r\n\r\n".encode()
        )
        assert web.get("/v1/cluster").status == 200
        poll = select.poll()
        poll.register(slow, select.POLLHUP | select.POLLERR | select.POLLRDHUP)
        assert poll.poll(10_000), "the server has ended the connection"
