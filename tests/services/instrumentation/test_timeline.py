"""Tests of the timeline recorder."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.errors import Refused
from services.instrumentation import timeline
from services.instrumentation.timeline import TimelineOptions


@pytest.fixture(autouse=True)
def stop_afterwards() -> Iterator[None]:
    yield
    timeline.stop()
    wait_for_file()


def wait_for_file() -> None:
    """Wait until the thread that writes the file has ended."""
    for thread in threading.enumerate():
        if thread.name == "timeline":
            thread.join(60)


def begin(
    folder: Path,
    steps: str = "2-3",
    role: str = "worker",
    name: str = "box",
    max_events: int = timeline.MAX_EVENTS,
) -> None:
    timeline.start(TimelineOptions.parse(folder, steps), role, name, max_events=max_events)


def read(path: Path) -> tuple[list[dict[str, Any]], dict[tuple[int, int], str]]:
    """Return a file's events, and the names of its rows by process and thread id."""
    events = json.loads(path.read_text())["traceEvents"]
    rows = {
        (each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == "thread_name"
    }
    return [each for each in events if each["ph"] != "M"], rows


def test_nothing_is_recorded_or_allocated_while_off() -> None:
    timeline.mark("device", "COMMIT", 1)
    assert timeline.span("device", "forward") is timeline.span("send", "chunk", 3, chunk=1)


def test_file_has_the_wanted_steps_and_is_written_after_them(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    begin(folder)
    timeline.mark("receive", "weights", 1, chunk=0)
    timeline.mark("device", "no step, before the first")
    timeline.mark("receive", "weights", 2, chunk=0)
    with timeline.span("device", "micro-batch", 2, index=5), timeline.span("device", "forward"):
        pass
    began = timeline.now()
    timeline.add("send", "send", began, 4, chunk=1)  # the exchange of step 3 makes the weights of step 4
    assert list(folder.iterdir()) == []
    timeline.mark("receive", "weights", 5, chunk=0)
    timeline.mark("receive", "weights", 3, chunk=9)
    wait_for_file()
    events, rows = read(folder / "worker-box.json")
    recorded = [(each["name"], each["args"].get("step"), rows[each["pid"], each["tid"]]) for each in events]
    assert recorded == [
        ("weights", 2, "receive"),
        ("forward", None, "device"),
        ("micro-batch", 2, "device"),
        ("send", 4, "send"),
    ]
    assert events[0]["args"] == {"step": 2, "chunk": 0}
    assert [each["ph"] for each in events] == ["i", "X", "X", "X"]
    starts = {each["name"]: each["ts"] for each in events}
    assert starts["weights"] <= starts["micro-batch"] <= starts["forward"] <= starts["send"]
    assert starts["send"] == pytest.approx(1e6 * began, abs=0.01), (
        "microseconds of the host's monotonic clock"
    )
    assert all(each["dur"] >= 0 for each in events if each["ph"] == "X")


def test_each_job_is_recorded_until_it_is_past_the_steps(tmp_path: Path) -> None:
    begin(tmp_path)
    timeline.mark("kernel", "COMMIT", 9, job="far")
    for step in (2, 3, 4, 5, 6):
        timeline.mark("kernel", "COMMIT", step, job="first")
        timeline.mark("kernel", "stage", job="first")
        timeline.mark("kernel", "COMMIT", step - 2, job="second")
    timeline.mark("kernel", "COMMIT", 2, job="first")  # it went back
    assert list(tmp_path.iterdir()) == []
    timeline.mark("kernel", "COMMIT", 5, job="second")
    wait_for_file()
    recorded = [
        (each["name"], each["args"]["job"], each["args"].get("step"))
        for each in read(tmp_path / "worker-box.json")[0]
    ]
    assert recorded == [
        ("COMMIT", "first", 2),
        ("stage", "first", None),
        ("COMMIT", "first", 3),
        ("stage", "first", None),
        ("COMMIT", "first", 4),
        ("stage", "first", None),
        ("COMMIT", "second", 2),
        ("COMMIT", "second", 3),
        ("COMMIT", "second", 4),
    ]


def test_process_that_ends_early_writes_its_events(tmp_path: Path) -> None:
    begin(tmp_path, role="aggregator", name="aggregator")
    timeline.mark("kernel", "COMMIT", 2)
    timeline.stop()
    wait_for_file()
    assert [each["name"] for each in read(tmp_path / "aggregator.json")[0]] == ["COMMIT"]
    timeline.mark("kernel", "COMMIT", 3)


def test_process_that_never_reached_the_steps_writes_nothing(tmp_path: Path) -> None:
    begin(tmp_path)
    timeline.mark("kernel", "COMMIT", 1)
    timeline.stop()
    begin(tmp_path)
    timeline.mark("kernel", "COMMIT", 7)  # a worker that joined late
    timeline.stop()
    wait_for_file()
    assert list(tmp_path.iterdir()) == []


def test_span_is_recorded_if_its_body_fails(tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(ValueError, match="broken"), timeline.span("device", "forward", 2):
        raise ValueError("broken")
    timeline.stop()
    wait_for_file()
    assert [each["name"] for each in read(tmp_path / "worker-box.json")[0]] == ["forward"]


def test_threads_record_concurrently_up_to_the_maximum(tmp_path: Path) -> None:
    begin(tmp_path, max_events=150)

    def record(row: str) -> None:
        for chunk in range(100):
            timeline.mark(row, "sum", 2, chunk=chunk)

    threads = [threading.Thread(target=record, args=(row,)) for row in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline.stop()
    wait_for_file()
    events, rows = read(tmp_path / "worker-box.json")
    assert len(events) == 150
    for row in set(rows.values()):
        chunks = [each["args"]["chunk"] for each in events if rows[each["pid"], each["tid"]] == row]
        assert chunks == list(range(len(chunks)))


def test_folder_that_vanished_is_logged_as_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begin(tmp_path / "gone")
    timeline.mark("device", "weights complete", 2)
    (tmp_path / "gone").rmdir()
    with caplog.at_level(logging.ERROR):
        timeline.mark("device", "weights complete", 5)
        wait_for_file()
    assert "worker-box.json" in caplog.text
    assert "No such file or directory" in caplog.text


@pytest.mark.parametrize("steps", ["", "5", "7-3", "a-b", "-3", "1-2-3"])
def test_malformed_steps_are_refused(tmp_path: Path, steps: str) -> None:
    with pytest.raises(Refused, match=f"--timeline-steps {steps}: expected FIRST-LAST"):
        TimelineOptions.parse(tmp_path, steps)


def test_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="file/x: Not a directory"):
        TimelineOptions.parse(tmp_path / "file" / "x", "1-2")


def test_flags_give_the_same_options(tmp_path: Path) -> None:
    options = TimelineOptions.parse(tmp_path, "3-4")
    assert options.flags == ("--timeline", str(tmp_path), "--timeline-steps", "3-4")
