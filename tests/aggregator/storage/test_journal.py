"""Tests of the journal: written events are read back, whatever damage is between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.storage.journal import BACKLOG_EVENTS, PIECE_BYTES, Journal, in_batches
from protos.jobs_pb2 import Job, JobEvent, LogLine
from services.printable import counted
from services.protocol.bounds import LOG_LINE_CHARACTERS, MOST_BATCHED_LINES, fit
from tests.support.small_disk import small_disk


def read(journal: Journal, job: str) -> list[LogLine]:
    """Return a job's log."""

    async def collect() -> list[LogLine]:
        return [line async for line in journal.lines(job)]

    return asyncio.run(collect())


def journal_with(folder: Path, between: bytes) -> Journal:
    """Return a journal with two events of job a and these bytes between them."""
    path = folder / "a.jsonl"
    path.unlink(missing_ok=True)
    journal = Journal(folder)
    journal.publish(JobEvent(job=Job(id="a"), seconds=1.5, kind="state", text="first"))
    with path.open("ab") as file:
        file.write(between)
    journal.publish(JobEvent(job=Job(id="a"), seconds=2.5, kind="state", text="second"))
    return journal


@pytest.mark.parametrize(
    "line",
    [
        b'{"seconds": 1.0, "te',
        b"5",
        b"null",
        b"[]",
        b"{}",
        b'{"seconds": "x", "text": 1}',
        b"\xff\0",
        b"[" * 9999,
    ],
)
def test_a_line_that_is_no_event_is_skipped(tmp_path: Path, line: bytes) -> None:
    assert [each.text for each in read(journal_with(tmp_path, line + b"\n"), "a")] == ["first", "second"]


@settings(max_examples=100, deadline=None)
@given(damage=st.binary(max_size=40))
def test_any_bytes_leave_the_events_before_them(
    tmp_path_factory: pytest.TempPathFactory, damage: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp() / "journal"
    assert read(journal_with(folder, damage), "a")[0].text == "first"


def test_a_line_after_one_that_was_cut_off_is_not_lost(tmp_path: Path) -> None:
    assert [each.text for each in read(journal_with(tmp_path, b'{"seconds": 1.0, "te'), "a")] == [
        "first",
        "second",
    ]


def test_lines_that_a_full_disk_refuses_are_counted_and_told(tmp_path: Path) -> None:
    lost: list[int] = []
    with small_disk(tmp_path / "disk", "64k") as disk:
        journal = Journal(disk.path / "logs", lost.append)

        def publish(job: str, number: int) -> None:
            journal.publish(JobEvent(job=Job(id=job), kind="step", text=f"line {number} " + "x" * 3000))

        publish("a", 0)
        publish("b", 0)
        disk.fill()
        with journal.subscription("a") as events:
            for number in range(1, 17):
                publish("a", number)
            assert events.qsize() == 16, "watchers get what the log lost"
        assert len(lost) >= 12, "a page of the file may have had room for some lines"
        disk.empty()
        publish("b", 6)
        for job in "ab":
            for line in disk.path.joinpath("logs", f"{job}.jsonl").read_text().splitlines():
                json.loads(line)
        assert read(journal, "a")[-1].text == (
            f"{counted(len(lost), 'line')} of this log could not be written before this one"
        )
        assert read(journal, "b")[-1].text.startswith("line 6 ")


def test_an_aggregator_killed_on_a_full_disk_leaves_word_that_lines_were_lost(tmp_path: Path) -> None:
    def publish(journal: Journal, job: str, text: str) -> None:
        journal.publish(JobEvent(job=Job(id=job), kind="step", text=text))

    with small_disk(tmp_path / "disk", "64k") as disk:
        folder = disk.path / "logs"
        journal = Journal(folder)
        publish(journal, "a", "first")
        disk.fill()
        for number in range(4):
            publish(journal, "a", f"{number} " + "x" * 3000)
        disk.empty()
        publish(Journal(folder), "b", "a job that had no log; then killed again")
        journal = Journal(folder)
        publish(journal, "a", "second")
        publish(journal, "a", "third")
        told, *others = [line.text for line in read(journal, "a")][-3:]
        assert (
            others == ["second", "third"] and "lines of this log or of another job's may be missing" in told
        )
        for job in "ab":
            publish(Journal(folder), job, "last")
            assert "missing" not in [line.text for line in read(Journal(folder), job)][-2], (
                "it is reported once"
            )


def test_a_journal_begins_on_a_full_disk(tmp_path: Path) -> None:
    lost: list[int] = []
    (tmp_path / "logs").write_text("in the place of the folder")
    Journal(tmp_path / "logs", lost.append).publish(JobEvent(job=Job(id="a"), kind="step", text="line"))
    assert lost == [1]


def test_slow_watchers_still_get_the_end(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with journal.subscription("a") as lagging, journal.subscription("b") as idle:
        for number in range(BACKLOG_EVENTS + 1):
            journal.publish(JobEvent(job=Job(id="a"), kind="step", text=str(number)))
        journal.close()
        events = [lagging.get_nowait() for _ in range(lagging.qsize())]
        assert events[-1] is None and None not in events[:-1]
        assert events[-2] is not None and events[-2].text == str(BACKLOG_EVENTS)
        assert idle.get_nowait() is None


def test_a_long_log_is_read_in_pieces_and_an_endless_line_left_out(tmp_path: Path) -> None:
    lines = [
        json.dumps({"seconds": 1.0, "kind": "step", "text": f"{number:0200d}"}) for number in range(2000)
    ]
    lines.insert(1000, "x" * (3 * PIECE_BYTES))
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    assert [int(line.text) for line in read(Journal(tmp_path), "a")] == list(range(2000))


def test_the_end_of_a_log_and_its_lines_about_timing_are_read_if_wanted(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for step in range(1, 4):
        job = Job(id="job", step=step, steps=3, loss=1.0)
        journal.publish(JobEvent(job=job, kind="step", text=f"Step: {step}", step_seconds=0.5))

    def texts(*, timing: bool, tail: int) -> list[str]:
        async def collect() -> list[str]:
            return [line.text async for line in journal.lines("job", timing=timing, tail=tail)]

        return asyncio.run(collect())

    assert texts(timing=False, tail=0) == ["Step: 1", "Step: 2", "Step: 3"]
    assert texts(timing=False, tail=2) == ["Step: 2", "Step: 3"]
    assert texts(timing=True, tail=2) == ["Step: 3", "Full step time 500.000 ms"]
    assert len(texts(timing=True, tail=99)) == 6


@pytest.mark.parametrize("count", [0, 1, 1 + MOST_BATCHED_LINES, 2 + MOST_BATCHED_LINES, 1000])
def test_lines_in_batches_are_the_same_lines_in_few_messages(count: int) -> None:
    made = [LogLine(seconds=float(number), text=f"line {number}") for number in range(count)]

    async def lines() -> AsyncIterator[LogLine]:
        for each in made:
            yield LogLine(seconds=each.seconds, text=each.text)

    async def collect() -> list[LogLine]:
        return [each async for each in in_batches(lines())]

    batches = asyncio.run(collect())
    assert len(batches) == -(-count // (1 + MOST_BATCHED_LINES))
    found: list[LogLine] = []
    for each in batches:
        found.append(LogLine(seconds=each.seconds, text=each.text))
        more = zip(each.more_seconds, each.more_texts, strict=True)
        found += [LogLine(seconds=seconds, text=text) for seconds, text in more]
    assert found == made


def test_a_batch_of_the_longest_lines_can_be_sent() -> None:
    async def lines() -> AsyncIterator[LogLine]:
        for _ in range(1 + MOST_BATCHED_LINES):
            yield LogLine(text="\N{GRINNING FACE}" * (2 * LOG_LINE_CHARACTERS))

    async def first() -> LogLine:
        return await anext(in_batches(lines()))

    batch = asyncio.run(first())
    fit(batch)
    assert len(batch.more_texts) == MOST_BATCHED_LINES


def read_end(folder: Path, tail: int) -> list[LogLine]:
    """Return the last lines of the log of job a."""

    async def collect() -> list[LogLine]:
        return [line async for line in Journal(folder).lines("a", tail=tail)]

    return asyncio.run(collect())


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([1, 100, PIECE_BYTES - 60, PIECE_BYTES, 3 * PIECE_BYTES]), max_size=8),
    first=st.integers(0, 8),
    tail=st.integers(1, 9),
)
def test_the_end_of_a_log_is_the_end_of_all_its_lines(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], first: int, tail: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    lines = [
        json.dumps({"seconds": 1.0, "kind": "step", "text": f"{number}" + "x" * length}) + "\n"
        for number, length in enumerate(lengths)
    ]
    (folder / "a.jsonl").write_text("".join(lines[:first]))
    (folder / "a.end.jsonl").write_text("".join(lines[first:]))
    assert read_end(folder, tail) == read(Journal(folder), "a")[-tail:]


def test_the_end_of_a_long_log_is_read_without_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps({"seconds": 1.0, "kind": "step", "text": "x" * 100}) + "\n"
    (tmp_path / "a.jsonl").write_text(line * 100 * (PIECE_BYTES // len(line)))
    parsed: list[bytes] = []

    def parse(texts: list[bytes], timing: bool) -> list[LogLine]:
        del timing
        parsed.extend(texts)
        return [LogLine(text="x")] * len(texts)

    monkeypatch.setattr("aggregator.storage.journal._parse", parse)
    assert len(read_end(tmp_path, 10)) == 10
    assert len(parsed) * len(line) <= 2 * PIECE_BYTES
