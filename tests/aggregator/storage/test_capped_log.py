"""Tests of the cap on a job's log: it keeps the first and the newest lines, and tells how many are missing."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.storage.capped_log import CappedLog
from aggregator.storage.journal import Journal
from protos.jobs_pb2 import Job, JobEvent
from services.caps import Cap
from services.printable import counted
from services.protocol.bounds import LOG_LINE_CHARACTERS
from tests.support.small_disk import small_disk

CAP_BYTES = 20_000
MISSING = re.compile(
    r"(\d+) lines are missing here: this log has reached its cap of \S+ MB \(--max-log-mb of the aggregator\)"
)


class LoggedJob:
    """A job whose log is capped, over restarts of its aggregator.

    Args:
        folder: the folder of the log.
        cap_bytes: the cap.
    """

    def __init__(self, folder: Path, cap_bytes: int = CAP_BYTES) -> None:
        self.folder, self.cap_bytes = folder, cap_bytes
        self.published = 0
        self.lost: list[int] = []
        self.reached: list[Cap] = []
        self.restart()

    def restart(self) -> None:
        """Begin again with what is on disk."""
        self.journal = Journal(self.folder, self.lost.append, self.cap_bytes, self.reached.append)

    def publish(self, characters: int = 60) -> None:
        """Publish another event, which has a number and a length."""
        text = f"line {self.published} ".ljust(characters, "x")
        self.journal.publish(JobEvent(job=Job(id="a"), seconds=1.0, kind="step", text=text))
        self.published += 1

    def size(self) -> int:
        """Return the size of all files of the log."""
        return sum(path.stat().st_size for path in self.folder.glob("*.jsonl"))

    def texts(self) -> list[str]:
        """Return what a reader of the log gets."""

        async def collect() -> list[str]:
            return [line.text async for line in self.journal.lines("a")]

        return asyncio.run(collect())

    def check(self) -> None:
        """Check the log's size, and that its lines are those that were published except those told to be missing."""
        assert self.size() <= self.cap_bytes
        texts = self.texts()
        found = [(number, match) for number, text in enumerate(texts) if (match := MISSING.fullmatch(text))]
        told, missing = [number for number, _ in found], [int(match[1]) for _, match in found]
        assert len(told) <= 1
        assert sum(missing) == sum(self.lost)
        assert bool(missing) == bool(self.reached)
        first = told[0] if told else len(texts)
        numbers = [int(text.split()[1]) for text in texts if not MISSING.fullmatch(text)]
        gap = sum(missing)
        assert numbers == [*range(first), *range(first + gap, self.published)]


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.integers(20, 1000) | st.just("restart") | st.just("many"), max_size=40),
    cap_bytes=st.integers(CAP_BYTES, 5 * CAP_BYTES),
)
def test_the_log_never_exceeds_its_cap_and_counts_what_is_missing(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int | str], cap_bytes: int
) -> None:
    job = LoggedJob(tmp_path_factory.mktemp("log"), cap_bytes)
    for step in steps:
        if step == "restart":
            job.restart()
        else:
            for _ in range(50 if step == "many" else 1):
                job.publish(60 if isinstance(step, str) else step)
                assert job.size() <= cap_bytes
        if job.published:
            job.check()


def test_the_first_and_the_last_lines_stay(tmp_path: Path) -> None:
    job = LoggedJob(tmp_path)
    for _ in range(2_000):
        job.publish()
    job.check()
    texts = job.texts()
    assert texts[0].startswith("line 0 ") and texts[-1].startswith("line 1999 ")
    assert len(texts) > 80 and set(job.reached) == {Cap.LOG_BYTES}


def test_the_longest_lines_fit_the_smallest_cap(tmp_path: Path) -> None:
    job = LoggedJob(tmp_path, 1_000_000)
    for number in range(200):
        text = f"line {number} ".ljust(LOG_LINE_CHARACTERS, "\U0001f600")  # 12 bytes each in JSON
        job.journal.publish(JobEvent(job=Job(id="a"), seconds=1.0, kind="step", text=text))
        job.published += 1
        job.check()


def test_a_reader_gets_the_lines_up_to_now_although_lines_are_removed_meanwhile(tmp_path: Path) -> None:
    job = LoggedJob(tmp_path)
    for _ in range(300):
        job.publish()
    expected = job.texts()

    async def read() -> list[str]:
        with job.journal.subscription("a") as events:
            lines = job.journal.lines("a")
            texts = [(await anext(lines)).text]
            for _ in range(500):
                job.publish()
            texts += [line.text async for line in lines]
            assert events.qsize() == 500, "a follower gets what the log loses"
        return texts

    assert asyncio.run(read()) == expected


def test_damage_of_the_newest_lines_leaves_the_log_usable(tmp_path: Path) -> None:
    job = LoggedJob(tmp_path)
    for _ in range(300):
        job.publish()
    end = CappedLog(tmp_path, "a", CAP_BYTES).end
    end.write_bytes(b'{"kind": "missing", "lines": 1e999}\n\xff\0\r' + end.read_bytes()[100:-7])
    for _ in range(300):
        job.publish()
        assert job.size() <= CAP_BYTES
    assert job.texts()[-1].startswith("line 599 ")


def test_a_rewrite_that_was_killed_takes_no_space_beyond_the_cap(tmp_path: Path) -> None:
    job = LoggedJob(tmp_path)
    for _ in range(300):
        job.publish()
    log = CappedLog(tmp_path, "a", CAP_BYTES)
    log.paths[-1].write_bytes(log.end.read_bytes())
    assert job.size() <= CAP_BYTES
    for _ in range(300):
        job.publish()
    job.check()


def test_a_full_disk_refuses_a_rewrite_and_nothing_is_removed(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        job = LoggedJob(disk.path / "logs", 200_000)
        while not job.reached:
            job.publish(500)
        before, removed = job.texts(), sum(job.lost)
        disk.fill()
        for _ in range(200):
            job.publish(500)
        refused = sum(job.lost) - removed
        assert refused > 100, "the last page may have had room for some lines"
        assert set(job.lost[-refused:]) == {1}
        assert job.texts()[: len(before)] == before
        disk.empty()
        job.publish()
        *_, told, last = job.texts()
        assert told.startswith(f"{counted(refused, 'line')} of this log could not be written before this one")
        assert last.startswith(f"line {job.published - 1} ")
        assert job.size() <= job.cap_bytes
