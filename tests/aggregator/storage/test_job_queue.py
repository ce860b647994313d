"""Tests of the queue on disk: order, epochs, fencing, kill -9, damaged files."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from aggregator.core.succession import Deposed
from aggregator.storage.job_queue import JobQueue
from protos import jobs_pb2
from services.errors import Failed, Refused

ROOT = Path(__file__).resolve().parents[3]


def job(name: str, state: jobs_pb2.JobState = jobs_pb2.QUEUED) -> jobs_pb2.Job:
    return jobs_pb2.Job(name=name, state=state, steps=10)


def names(queue: JobQueue) -> list[str]:
    return [each.name for each in queue.page(None, 1000).jobs]


def test_live_jobs_come_back_complete_and_in_order_of_submission(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        queue.raise_epoch()
        c, a, b = (queue.add(job(name), f'{{"of": "{name}"}}') for name in "cab")
        a.state, a.step = jobs_pb2.RUNNING, 3
        a.claims.add(fingerprint={"arch": "wormhole", "backend": "emulator"})
        queue.save(a)
        b.state = jobs_pb2.CANCELLED
        queue.save(b)
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        assert queue.live_jobs() == [(c, '{"of": "c"}'), (a, '{"of": "a"}')]
        assert queue.find(b.id) == b
        assert queue.find("no such job") is None


def test_epoch_rises_with_every_start(tmp_path: Path) -> None:
    for expected in (1, 2, 3):
        with JobQueue(tmp_path / "queue.sqlite") as queue:
            assert queue.raise_epoch() == expected


def test_an_aggregator_that_was_taken_over_from_writes_nothing(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as old, JobQueue(tmp_path / "queue.sqlite") as new:
        old.raise_epoch()
        a = old.add(job("a"), "{}")
        new.raise_epoch()
        with pytest.raises(Failed, match=r"epoch 2.*epoch 1"):
            old.save(jobs_pb2.Job(id=a.id, state=jobs_pb2.FAILED))
        with pytest.raises(Failed, match="epoch"):
            old.add(job("b"), "{}")
        assert new.live_jobs() == [(a, "{}")]
        new.add(job("b"), "{}")


def test_nothing_is_saved_before_the_epoch_is_raised(tmp_path: Path) -> None:
    with (
        JobQueue(tmp_path / "queue.sqlite") as queue,
        pytest.raises(Failed, match=r"epoch 0.*epoch None"),
    ):
        queue.add(job("a"), "{}")


def test_what_was_saved_survives_kill_9(tmp_path: Path) -> None:
    """Check that every job a process reported as saved is there after kill -9."""
    script = (
        "import sys; from pathlib import Path\n"
        "from aggregator.storage.job_queue import JobQueue; from protos import jobs_pb2\n"
        "queue = JobQueue(Path(sys.argv[1])); print(queue.raise_epoch(), flush=True)\n"
        "for number in range(10**6):\n"
        "    queue.add(jobs_pb2.Job(name=f'job-{sys.argv[2]}-{number}', state=1), 'x' * 5000)\n"
        "    print(number, flush=True)\n"
    )
    path = tmp_path / "queue.sqlite"
    for start in (1, 2, 3):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(path), str(start)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert int(process.stdout.readline()) == start
        for _ in range(5):
            process.stdout.readline()
        process.kill()
        saved = 5 + len(process.stdout.read().split("\n")[:-1])
        process.wait(timeout=30)
        with JobQueue(path) as queue:
            found = [each.job.name for each in queue.live_jobs()]
        found = [name for name in found if name.startswith(f"job-{start}-")]
        assert found[:saved] == [f"job-{start}-{number}" for number in range(saved)]


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    with JobQueue(path) as queue:
        queue.raise_epoch()
        for number in range(50):
            queue.add(job(f"job-{number}"), "x" * 2000)
    content = bytearray(path.read_bytes())
    for place in range(4096 * 4, len(content), 512):
        content[place : place + 64] = bytes(64)
    path.write_bytes(content)
    with pytest.raises(Failed, match=r"queue\.sqlite: damaged") as caught:
        JobQueue(path).live_jobs()
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, not a queue" * 100)
    with pytest.raises(Failed, match="damaged"):
        JobQueue(path)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    with pytest.raises(Refused, match=r"format 0, of .* another program, expected 3"):
        JobQueue(other)
    with pytest.raises(Refused, match="can't be opened"):
        JobQueue(tmp_path)


def test_a_locked_file_is_waited_for_then_named(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    with JobQueue(path, lock_seconds=0.1) as queue:
        queue.raise_epoch()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Failed, match=r"locked .* 0\.1 s"):
            queue.add(job("a"), "{}")
        other.execute("ROLLBACK")
        other.close()
        queue.add(job("a"), "{}")


def test_a_read_only_file_is_named(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        queue.raise_epoch()
        queue._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(Failed, match="read-only"):
            queue.add(job("a"), "{}")


# ---- standbys ----


def test_only_one_of_two_standbys_takes_over(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    with JobQueue(path) as first, JobQueue(path) as second:
        seen = [first.look("b"), second.look("c")]
        assert seen[0] == seen[1] and seen[0].takeover_seconds == 0.0, "there never was a leader"
        assert second.take_over(seen[1], "c", 25.0) == 1
        assert first.take_over(seen[0], "b", 25.0) is None
        sighting = first.look("b")
        assert (sighting.epoch, sighting.leader, sighting.takeover_seconds, sighting.known) == (
            1,
            "c",
            25.0,
            True,
        )
        assert second.standbys() == {"b": 1}, "the leader is not a standby"


def test_a_leader_that_beats_is_not_taken_over_from(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    with JobQueue(path) as leader, JobQueue(path) as standby:
        leader.raise_epoch("a", 25.0)
        seen = standby.look("b")
        leader.beat()
        assert standby.take_over(seen, "b", 25.0) is None
        leader.add(job("a"), "{}")
        assert standby.take_over(standby.look("b"), "b", 25.0) == 2
        for write in (leader.beat, leader.resign, leader.standbys):
            with pytest.raises(Deposed, match=r"epoch 2.*epoch 1"):
                write()


def test_no_standby_takes_over_within_the_fence(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    with JobQueue(path) as leader, JobQueue(path, lock_seconds=0.1) as standby:
        leader.raise_epoch("a", 25.0)
        seen = standby.look("b")
        with leader.fenced(), pytest.raises(Failed, match="locked"):
            standby.take_over(seen, "b", 25.0)
        assert standby.take_over(seen, "b", 25.0) == 2
        with pytest.raises(Deposed), leader.fenced():
            raise AssertionError("it went in")


def test_a_forgotten_standby_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    with JobQueue(path) as leader, JobQueue(path) as standby:
        leader.raise_epoch("a", 25.0)
        assert [standby.look("b").known for _ in range(2)] == [False, True]
        leader.beat(["b"])
        assert [standby.look("b").known for _ in range(2)] == [False, True]
        standby.leave("b")
        assert leader.standbys() == {}
