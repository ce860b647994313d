"""Tests of damaged queues: any damaged row is either read correctly or refused in one line."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aggregator.storage.job_queue import JobQueue
from protos.jobs_pb2 import QUEUED, Job
from services.errors import TiermeshError
from services.protocol.versions import LAST_EPOCH
from tests.support.anything import is_one_line

COLUMNS = st.sampled_from(["job", "spec_json", "epoch"])
VALUES = (
    st.binary(max_size=12)
    | st.text(max_size=12)
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)  # NaN is SQLite's NULL, which no column accepts
    | st.sampled_from(["[]", '{"a": 1}', '{"a": "b"}', "[" * 100_000, LAST_EPOCH, "x" * 10_000])
)


@settings(max_examples=60, deadline=None)
@given(column=COLUMNS, value=VALUES)
@example("job", 5)
@example("epoch", LAST_EPOCH)
@example("epoch", b"x")
def test_any_value_in_a_row(tmp_path_factory: pytest.TempPathFactory, column: str, value: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "queue" / "queue.sqlite"
    path.unlink(missing_ok=True)
    with JobQueue(path) as queue:
        queue.raise_epoch()
        job = queue.add(Job(name="a", state=QUEUED), "{}")
        queue.save(job)
    with sqlite3.connect(path) as connection:
        table = {"epoch": "cluster", "spec_json": "specs"}.get(column, "jobs")
        connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
    connection.close()
    try:
        with JobQueue(path) as queue:
            assert 0 < queue.raise_epoch() <= LAST_EPOCH
            ((job, spec_json),) = queue.live_jobs()
    except TiermeshError as error:
        assert is_one_line(error)
        return
    assert isinstance(job, Job)
    assert isinstance(spec_json, str)


@settings(max_examples=60, deadline=None)
@given(
    column=st.sampled_from(["leader.name", "beat", "takeover_seconds", "standbys.name", "looks"]),
    value=VALUES,
)
@example("beat", (1 << 63) - 1)
@example("takeover_seconds", float("inf"))
@example("takeover_seconds", -1.0)
def test_any_value_in_the_leader_and_standbys_tables(
    tmp_path_factory: pytest.TempPathFactory, column: str, value: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "queue" / "queue.sqlite"
    path.unlink(missing_ok=True)
    with JobQueue(path) as leader, JobQueue(path) as standby:
        leader.raise_epoch("a", 25.0)
        standby.look("b")
        table = "standbys" if column in ("standbys.name", "looks") else "leader"
        leader._connection.execute(f"UPDATE {table} SET {column.rpartition('.')[2]} = ?", (value,))
        try:
            leader.standbys()
            leader.beat()
            sight = standby.look("b")
            assert standby.take_over(sight, "b", 25.0) == 2
        except TiermeshError as error:
            assert is_one_line(error)
            return
        assert isinstance(sight.leader, str)
        assert 0 <= sight.takeover_seconds < float("inf")


def test_a_queue_without_an_epoch_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    with JobQueue(path):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM cluster")
    connection.close()
    with JobQueue(path) as queue, pytest.raises(TiermeshError, match="damaged"):
        queue.raise_epoch()
