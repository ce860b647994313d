"""Timelines of several daemons: transfers, how much of them computing hides, the merged file, the picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from cli.timeline.picture import draw, write
from cli.timeline.trace import Payload, StepTrace, length, side_by_side, union, without
from services.errors import Refused

MILLION = 1e6
SVG = "{http://www.w3.org/2000/svg}"


class TimelineFile:
    """Timeline of one daemon; times are in seconds."""

    def __init__(self, role: str, name: str, *, boot: str = "a", zero: float = 0.0) -> None:
        self.events: list[dict[str, Any]] = []
        self._other = {
            "process": name if name.startswith(role) else f"{role} {name}",
            "role": role,
            "name": name,
            "boot_id": boot,
            "unix_seconds_at_zero": zero,
        }
        self._rows: dict[str, int] = {}

    def add(self, row: str, name: str, start: float, stop: float | None = None, **args: Any) -> None:
        """Add a span or, without `stop`, a mark."""
        event = {
            "name": name,
            "pid": 7,
            "tid": self._rows.setdefault(row, len(self._rows)),
            "ts": MILLION * start,
            "args": args,
        }
        self.events.append(
            {**event, "ph": "i"} if stop is None else {**event, "ph": "X", "dur": MILLION * (stop - start)}
        )

    def write(self, folder: Path) -> None:
        names = [
            {"ph": "M", "name": "thread_name", "pid": 7, "tid": tid, "args": {"name": row}}
            for row, tid in self._rows.items()
        ]
        content = {"traceEvents": names + self.events, "otherData": self._other}
        (folder / f"{self._other['process']}.json").write_text(json.dumps(content))


def record(folder: Path, *, boot: str = "a", shift: float = 0.0) -> None:
    """Write step 4 of a worker and an aggregator, and the passes of step 5.

    Forward 0 to 2, backward 2 to 6; two chunks up, 3 to 5 and 4 to 7; COMMIT at 8; two chunks down, 8 to 10 and 9 to
    12; the next forward pass from 9 to 14 waits from 11 to 12. The aggregator's clock is `shift` seconds behind.
    """
    worker, aggregator = (
        TimelineFile("worker", "box"),
        TimelineFile("aggregator", "box", boot=boot, zero=shift),
    )
    for step, begin, middle, end in ((4, 0.0, 2.0, 6.0), (5, 9.0, 14.0, 16.0)):
        worker.add("device", "forward", begin, middle)
        worker.add("device", "backward", middle, end)
        worker.add("device", "micro-batch", begin, end, step=step, index=0, last=True)
    worker.add("device", "wait for weights", 11.0, 12.0, chunk=1)
    for chunk, start, stop in ((1, 3.0, 5.0), (0, 4.0, 7.0)):
        worker.add("send", "send", start, start + 0.5, step=4, lease=9, chunk=chunk)
        aggregator.add("from box", "gradient", stop - shift, step=4, lease=9, chunk=chunk)
    aggregator.add("kernel", "COMMIT", 8.0 - shift, step=4)
    for chunk, start, stop in ((0, 8.0, 10.0), (1, 9.0, 12.0)):
        aggregator.add(
            "to box", "send", start - shift, start - shift + 0.1, step=5, worker="box", chunk=chunk
        )
        worker.add("receive", "weights", stop, step=5, chunk=chunk)
    worker.write(folder)
    aggregator.write(folder)


def test_overlap_of_transfers_and_computing(tmp_path: Path) -> None:
    record(tmp_path)
    trace = StepTrace(tmp_path)
    assert (trace.workers, trace.steps) == (["worker box"], [4])
    up, down = trace.overlap(Payload.GRADIENTS), trace.overlap(Payload.WEIGHTS)
    assert (up.transfer_seconds, up.hidden_seconds) == pytest.approx((4.0, 3.0)), (
        "3 to 7, of which 3 to 6 is computed"
    )
    assert (down.transfer_seconds, down.hidden_seconds) == pytest.approx((4.0, 2.0)), (
        "8 to 12, of which 9 to 11 is computed, then the worker waits"
    )
    assert (up.share, down.share) == pytest.approx((0.75, 0.5))


def test_hosts_with_clocks_of_their_own_are_aligned_by_calendar_time(tmp_path: Path) -> None:
    record(tmp_path, boot="b", shift=100.0)
    trace = StepTrace(tmp_path)
    assert trace.overlap(Payload.GRADIENTS).share == pytest.approx(0.75)
    starts = {each["name"]: each["ts"] / MILLION for each in trace.merged()["traceEvents"] if "ts" in each}
    assert starts["COMMIT"] == pytest.approx(8.0)


def test_calendar_time_is_ignored_on_one_host(tmp_path: Path) -> None:
    record(tmp_path)
    content = json.loads((tmp_path / "aggregator box.json").read_text())
    content["otherData"]["unix_seconds_at_zero"] = 5.0
    (tmp_path / "aggregator box.json").write_text(json.dumps(content))
    assert StepTrace(tmp_path).overlap(Payload.GRADIENTS).share == pytest.approx(0.75)


def test_a_merged_file_keeps_processes_apart(tmp_path: Path) -> None:
    record(tmp_path)
    merged = StepTrace(tmp_path).merged()["traceEvents"]
    rows = {(each["pid"], each["args"]["name"]) for each in merged if each["name"] == "thread_name"}
    assert rows == {
        *((1, row) for row in ("from box", "kernel", "to box")),
        *((2, row) for row in ("device", "send", "receive")),
    }, "the files name the same process id, as in containers"


def test_a_picture_has_a_bar_for_every_activity(tmp_path: Path) -> None:
    record(tmp_path)
    picture = xml.etree.ElementTree.fromstring(draw(StepTrace(tmp_path), 4))
    texts = {each.text for each in picture.iter(f"{SVG}text")}
    assert texts >= {
        "Step 4, and the forward pass of step 5",
        "worker box: computing",
        "worker box: gradients up",
        "worker box: weights down",
        "COMMIT of step 4",
        "0 ms",
        "14000 ms",
    }
    bars = {each.text for each in picture.iter(f"{SVG}title")}
    assert bars >= {
        "chunk 0 of step 5, 2000.00 ms",
        "chunk 1 of step 5, 2000.00 ms",
        "wait for weights, chunk 1, 1000.00 ms",
    }


def test_one_of_several_jobs_is_chosen(tmp_path: Path) -> None:
    record(tmp_path)
    for path in tmp_path.iterdir():
        content = json.loads(path.read_text())
        for each in content["traceEvents"]:
            each["args"].update({"job": "job-1"} if "step" in each["args"] else {})
        path.write_text(json.dumps(content))
    alone = StepTrace(tmp_path)
    other = TimelineFile("worker", "other")
    other.add("device", "micro-batch", 1.0, 3.0, step=4, index=0, last=True, job="job-2")
    other.add("send", "send", 1.0, 2.0, step=4, job="job-2")
    other.write(tmp_path)
    trace = StepTrace(tmp_path, "b-1")
    assert (trace.workers, trace.steps, trace.transfers) == (["worker box"], [4], alone.transfers)
    assert trace.events == alone.events and len(trace.merged()["traceEvents"]) > len(trace.events)
    for part, given in (("", "no --job"), ("job", "--job job"), ("job-3", "--job job-3")):
        with pytest.raises(Refused, match=f"{given} given, expected one of the recorded jobs: job-1, job-2"):
            StepTrace(tmp_path, part)


def test_the_step_in_the_middle_is_drawn(tmp_path: Path) -> None:
    record(tmp_path)
    write(tmp_path, tmp_path / "merged")
    assert "Step 4" in (tmp_path / "merged" / "step.svg").read_text()
    assert json.loads((tmp_path / "merged" / "timeline.json").read_text())["traceEvents"]


def test_bars_of_a_row_do_not_lie_over_each_other(tmp_path: Path) -> None:
    record(tmp_path)
    bars = [
        (each.start, each.stop)
        for each in side_by_side(StepTrace(tmp_path).transfers)
        if each.payload is Payload.GRADIENTS
    ]
    assert bars == [(3.0, 5.0), (5.0, 7.0)]


def test_files_that_are_no_timelines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"no timeline files.*--timeline"):
        StepTrace(tmp_path)
    other = tmp_path / "other.json"
    head = '"otherData": {"process": "a", "role": "worker", "name": "a", "boot_id": "b"}'
    for text in ("[1]", "{", "{}", f"{{{head}}}", f'{{{head}, "traceEvents": [{{"name": 1}}]}}'):
        other.write_text(text)
        with pytest.raises(Refused, match=r"other\.json"):
            StepTrace(tmp_path)


def test_timelines_without_a_complete_step_are_refused(tmp_path: Path) -> None:
    worker = TimelineFile("worker", "box")
    worker.add("device", "forward", 1.0, 2.0)
    worker.write(tmp_path)
    with pytest.raises(Refused, match=r"no complete step.*--timeline-steps"):
        write(tmp_path, tmp_path / "merged")
    with pytest.raises(Refused, match="no complete step"):
        StepTrace(tmp_path).overlap(Payload.GRADIENTS)


def test_the_command_writes_both_files_and_prints_the_shares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path)
    assert main(["timeline", str(tmp_path), "--output", str(tmp_path / "out"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["steps"], result["trace"]) == ([4], str(tmp_path / "out" / "timeline.json"))
    assert (result["gradients"]["hidden_share"], result["weights"]["hidden_share"]) == (0.75, 0.5)
    assert Path(result["picture"]).read_text().startswith("<svg")
    assert main(["timeline", str(tmp_path)]) == 0
    assert "75%" in capsys.readouterr().out
    assert (tmp_path / "merged" / "step.svg").exists()


@pytest.mark.parametrize("arguments", [["nowhere"], ["."], []])
def test_the_command_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["timeline", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_time_is_counted_once() -> None:
    assert union([(3, 5), (1, 2), (4, 6)]) == [(1, 2), (3, 6)]
    assert without([(0, 10)], [(2, 3), (5, 20)]) == [(0, 2), (3, 5)]
    assert without([(0, 1), (4, 6)], [(1, 4)]) == [(0, 1), (4, 6)]
    assert without([(2, 3)], [(0, 9)]) == []
    assert length([(0, 2), (3, 5)]) == 4
