"""Tests of the version of a queue's file: only today's is read."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from aggregator.storage.backup import QUEUE_FILE, restore_queue
from aggregator.storage.job_queue import JobQueue
from aggregator.storage.schema import FORMAT
from services.errors import Refused
from tests.support.facts import has_facts


@pytest.mark.parametrize(
    ("version", "facts"),
    [
        (FORMAT + 1, f"format {FORMAT + 1}, of a newer version of Tiermesh, expected {FORMAT}; install"),
        (FORMAT - 1, f"format {FORMAT - 1}, of an older version ... expected {FORMAT}; choose another file"),
    ],
)
def test_a_file_of_another_version_is_refused_by_name(tmp_path: Path, version: int, facts: str) -> None:
    path = tmp_path / QUEUE_FILE
    JobQueue(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Refused) as refused:
        JobQueue(path)
    assert has_facts(str(refused.value), f"{QUEUE_FILE}: {facts}")
    (tmp_path / "other").mkdir()
    with pytest.raises(Refused) as refused:
        restore_queue(path, tmp_path / "other", adopt=False)
    assert has_facts(str(refused.value), f"{QUEUE_FILE}: {facts}")
    assert path.read_bytes() == before and not (tmp_path / "other" / QUEUE_FILE).exists()
