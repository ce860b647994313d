"""Tests of the queue's versions: older files are migrated by the aggregator that takes over, newer ones are refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from aggregator.storage import schema
from aggregator.storage.job_queue import JobQueue
from aggregator.storage.queue_file import DiskFull
from protos.jobs_pb2 import FAILED, QUEUED, RUNNING, Job
from services.errors import Failed, Refused
from tests.support.small_disk import small_disk

FORMAT_1 = """
CREATE TABLE cluster (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), epoch INTEGER NOT NULL);
INSERT INTO cluster VALUES (1, 7);
CREATE TABLE jobs (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    job BLOB NOT NULL,
    spec_json TEXT NOT NULL,
    fingerprint_json TEXT NOT NULL
);
PRAGMA user_version = 1;
"""
JOBS = [
    (Job(id="0101-000000-aaaa", name="a", state=FAILED), "{}", "{}"),
    (Job(id="0101-000001-bbbb", name="b", state=RUNNING), '{"of": "b"}', '{"backend": "emulator"}'),
    (Job(id="0101-000002-cccc", name="c", state=QUEUED), '{"of": "c"}', "{}"),
]


LATER = ("leader", "standbys", "removals")
"""Tables that every opened file gets, whatever its version."""


def make_format_1(path: Path, jobs: int = 1) -> None:
    """Write a file as the version before this one did."""
    with sqlite3.connect(path) as connection:
        connection.executescript(FORMAT_1)
        for _ in range(jobs):
            connection.executemany(
                "INSERT OR IGNORE INTO jobs (id, job, spec_json, fingerprint_json) VALUES (?, ?, ?, ?)",
                [(job.id, job.SerializeToString(), spec, pinned) for job, spec, pinned in JOBS],
            )
    connection.close()


def content(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        lines = list(connection.iterdump())
    connection.close()
    return lines


def test_an_older_file_is_migrated_and_a_copy_of_it_kept(tmp_path: Path) -> None:
    path, copy = tmp_path / "queue.sqlite", tmp_path / "queue.sqlite.format-1"
    make_format_1(path)
    before = content(path)
    with JobQueue(path) as standby:
        standby.look("b")
        assert not copy.exists(), "to look is not to take over"
        with JobQueue(path) as queue:
            assert queue.raise_epoch("a") == 8
            assert [each.job for each in queue.live_jobs()] == [JOBS[1][0], JOBS[2][0]]
            assert queue.live_jobs()[0][1:] == ('{"of": "b"}', {"backend": "emulator"})
            assert queue.page(None, 10).jobs == [job for job, _, _ in JOBS]
            assert queue.find("0101-000000-aaaa") == JOBS[0][0]
            added = queue.add(Job(name="d", state=QUEUED), "{}", "request")
            assert queue.page(None, 10).jobs[-1] == added
        assert standby.look("b").epoch == 8
    assert [line for line in content(copy) if not any(table in line for table in LATER)] == before
    with JobQueue(path) as queue:
        assert queue.raise_epoch("a") == 9
        assert len(queue.page(None, 10).jobs) == 4


def test_a_migrated_file_has_the_tables_of_a_new_one(tmp_path: Path) -> None:
    make_format_1(tmp_path / "old.sqlite")
    shapes = []
    for name in ("old.sqlite", "new.sqlite"):
        with JobQueue(tmp_path / name) as queue:
            queue.raise_epoch("a")
            tables = [
                row[0] for row in queue._connection.execute("SELECT name FROM sqlite_master ORDER BY name")
            ]
            shapes.append(
                {
                    table: queue._connection.execute(f"PRAGMA table_info({table})").fetchall()
                    for table in tables
                }
            )
    assert shapes[0] == shapes[1]


def test_a_newer_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    JobQueue(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {schema.FORMAT + 1}")
    connection.close()
    with pytest.raises(
        Refused, match=r"format 3, of a newer version of Tiermesh; this one reads up to format 2"
    ):
        JobQueue(path)


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    make_format_1(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE jobs SET job = x'ff' WHERE place = 2")
    connection.close()
    with JobQueue(path) as queue:
        before = content(path)
        with pytest.raises(Failed, match="damaged"):
            queue.raise_epoch("a")
    assert content(path) == before


def test_a_migration_on_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        path = disk.path / "queue.sqlite"
        make_format_1(path)
        with JobQueue(path) as queue:
            disk.fill()
            before = content(path)
            with pytest.raises(DiskFull):
                queue.raise_epoch("a")
            assert content(path) == before
            disk.empty()
            assert queue.raise_epoch("a") == 8
        assert sorted(each.name for each in disk.path.iterdir()) == [
            "queue.sqlite", "queue.sqlite-journal", "queue.sqlite.format-1"
        ]  # fmt: skip
