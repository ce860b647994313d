"""What is recorded of some steps, and that nothing is kept or paid for otherwise."""

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
def off_afterwards() -> Iterator[None]:
    yield
    timeline.stop()
    written()


def written() -> None:
    """Wait until a file that is being written is complete."""
    for thread in threading.enumerate():
        if thread.name == "timeline":
            thread.join(10)


def begin(folder: Path, steps: str = "2-3", role: str = "worker", name: str = "box") -> None:
    timeline.start(TimelineOptions.parse(folder, steps), role, name)


def read(path: Path) -> tuple[list[dict[str, Any]], dict[tuple[int, int], str]]:
    """The events, and the names of the lanes."""
    events = json.loads(path.read_text())["traceEvents"]
    lanes = {
        (each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == "thread_name"
    }
    return [each for each in events if each["ph"] != "M"], lanes


def test_off_it_keeps_nothing_and_makes_nothing() -> None:
    timeline.mark("device", "COMMIT", 1)
    assert timeline.span("device", "forward") is timeline.span("send", "chunk", 3, chunk=1)


def test_the_steps_that_are_asked_for_are_recorded_and_written_when_they_are_over(tmp_path: Path) -> None:
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
    written()
    events, lanes = read(folder / "worker-box.json")
    told = [(each["name"], each["args"].get("step"), lanes[each["pid"], each["tid"]]) for each in events]
    assert told == [
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


def test_a_process_that_ends_before_writes_what_there_is(tmp_path: Path) -> None:
    begin(tmp_path, role="aggregator", name="aggregator")
    timeline.mark("kernel", "COMMIT", 2)
    timeline.stop()
    written()
    assert [each["name"] for each in read(tmp_path / "aggregator.json")[0]] == ["COMMIT"]
    timeline.mark("kernel", "COMMIT", 3)


def test_a_process_that_never_came_to_the_steps_writes_nothing(tmp_path: Path) -> None:
    begin(tmp_path)
    timeline.mark("kernel", "COMMIT", 1)
    timeline.stop()
    begin(tmp_path)
    timeline.mark("kernel", "COMMIT", 7)  # a worker that came late
    timeline.stop()
    written()
    assert list(tmp_path.iterdir()) == []


def test_a_failure_ends_its_span(tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(ValueError, match="broken"), timeline.span("device", "forward", 2):
        raise ValueError("broken")
    timeline.stop()
    written()
    assert [each["name"] for each in read(tmp_path / "worker-box.json")[0]] == ["forward"]


def test_threads_record_side_by_side_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_EVENTS", 150)
    begin(tmp_path)

    def record(lane: str) -> None:
        for chunk in range(100):
            timeline.mark(lane, "sum", 2, chunk=chunk)

    threads = [threading.Thread(target=record, args=(lane,)) for lane in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline.stop()
    written()
    events, lanes = read(tmp_path / "worker-box.json")
    assert len(events) == 150
    for lane in set(lanes.values()):
        chunks = [each["args"]["chunk"] for each in events if lanes[each["pid"], each["tid"]] == lane]
        assert chunks == list(range(len(chunks)))


def test_a_folder_that_is_gone_is_said_and_the_job_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin(tmp_path / "gone")
    timeline.mark("device", "weights complete", 2)
    (tmp_path / "gone").rmdir()
    with caplog.at_level(logging.ERROR):
        timeline.mark("device", "weights complete", 5)
        written()
    assert "worker-box.json: No such file or directory" in caplog.text


@pytest.mark.parametrize("steps", ["", "5", "7-3", "a-b", "-3", "1-2-3"])
def test_steps_that_are_none(tmp_path: Path, steps: str) -> None:
    with pytest.raises(Refused, match=f"--timeline-steps {steps}: expected FIRST-LAST, for example 10-12"):
        TimelineOptions.parse(tmp_path, steps)


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="file/x: Not a directory; expected a folder"):
        TimelineOptions.parse(tmp_path / "file" / "x", "1-2")


def test_flags_say_the_same(tmp_path: Path) -> None:
    options = TimelineOptions.parse(tmp_path, "3-4")
    assert options.flags == ("--timeline", str(tmp_path), "--timeline-steps", "3-4")
