"""Tests of a queue's backup and restore: any damage is refused, and whatever fails leaves what was there."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aggregator.core.succession import SKIPPED_EPOCHS
from aggregator.storage import backup as backups
from aggregator.storage.backup import back_up_queue, restore_queue
from aggregator.storage.job_queue import JobQueue
from aggregator.storage.queue_check import check_queue
from aggregator.storage.schema import FORMAT
from protos.jobs_pb2 import PAUSED, QUEUED, RUNNING, SUCCEEDED, Job
from services.errors import Failed, NotYet, Refused
from services.protocol.versions import LAST_EPOCH
from services.runtime.cluster_identity import StateDirUse, write_cluster
from tests.support.anything import is_one_line
from tests.support.small_disk import small_disk

QUEUE = "queue.sqlite"
OTHER_CLUSTER = "0123456789abcdef"


def make_queue(state_dir: Path, jobs: int = 2, starts: int = 1) -> list[tuple[Job, str]]:
    """Make a queue whose aggregator has started some times; return its jobs with their specs."""
    state_dir.mkdir(exist_ok=True)
    with JobQueue(state_dir / QUEUE) as queue:
        for _ in range(starts):
            queue.raise_epoch("a")
        for number in range(jobs):
            queue.add(Job(name=f"job {number}", state=QUEUED), f'{{"number": {number}}}', f"request-{number}")
        done = queue.add(Job(name="done", state=QUEUED), "{}")
        done.state = SUCCEEDED
        queue.save(done)
    return content(state_dir)


def content(state_dir: Path) -> list[tuple[Job, str]]:
    with JobQueue(state_dir / QUEUE) as queue:
        specs = {each.job.id: each.spec_json for each in queue.live_jobs()}
        return [(job, specs.get(job.id, "")) for job in queue.page(None, 1000).jobs]


def identity(state_dir: Path) -> tuple[int, str]:
    """Return the epoch that a queue's next aggregator gets, and its cluster."""
    with JobQueue(state_dir / QUEUE) as queue:
        return queue.raise_epoch("a"), queue.cluster


def test_a_paused_job_is_paused_after_a_restore_too(tmp_path: Path) -> None:
    state, file = tmp_path / "state", tmp_path / "backup"
    make_queue(state, jobs=0)
    with JobQueue(state / QUEUE) as queue:
        queue.raise_epoch("a")
        paused = queue.add(Job(name="paused", state=QUEUED, priority=-3), "{}")
        paused.state = PAUSED
        queue.save(paused)
        running = queue.add(Job(name="about to be", state=QUEUED), "{}")
        running.state, running.pausing = RUNNING, True
        queue.save(running)
    assert back_up_queue(state, file, force=False).live_jobs == 2
    assert check_queue(file, "the backup").live_jobs == 2
    restore_queue(file, state, adopt=False)
    with JobQueue(state / QUEUE) as queue:
        assert [each.job for each in queue.live_jobs()] == [paused, running]


def test_a_backup_is_made_and_restored_while_the_queue_is_open(tmp_path: Path) -> None:
    state, file = tmp_path / "state", tmp_path / "backup"
    jobs = make_queue(state)
    with JobQueue(state / QUEUE) as leader:
        leader.raise_epoch("a")
        summary = back_up_queue(state, file, force=False)
        leader.add(Job(name="later", state=QUEUED), "{}")
    assert (summary.jobs, summary.live_jobs, summary.epoch, summary.format) == (3, 2, 2, FORMAT)
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["backup", "state"]
    before = file.read_bytes()

    restored = restore_queue(file, state, adopt=False)
    assert content(state) == jobs
    assert file.read_bytes() == before
    assert restored.replaced is not None and restored.replaced_epoch == 2
    assert check_queue(restored.replaced, "the replaced queue").jobs == 4
    epoch, cluster = identity(state)
    assert epoch - 3 in SKIPPED_EPOCHS
    assert cluster == summary.cluster
    with JobQueue(state / QUEUE) as queue:
        queue.raise_epoch("a")
        assert queue.add(Job(name="job 0", state=QUEUED), '{"number": 0}', "request-0") == jobs[0][0]


def test_each_restore_of_one_backup_has_other_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = Random(1)  # draws of the system are equal in 1 of 1,400 runs
    monkeypatch.setattr(random, "SystemRandom", lambda: draws)
    make_queue(tmp_path / "state")
    back_up_queue(tmp_path / "state", tmp_path / "backup", force=False)
    epochs = []
    for number in range(4):  # the replaced queue is lost each time
        state = tmp_path / f"new-{number}"
        state.mkdir()
        restore_queue(tmp_path / "backup", state, adopt=False)
        epochs.append(identity(state)[0])
    assert len(set(epochs)) == 4


@settings(max_examples=150, deadline=None)
@given(
    places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=3),
    kept=st.floats(0, 1),
)
@example([], 1.0)
@example([], 0.0)
@example([(0.0, 255)], 1.0)
def test_a_damaged_backup_is_refused_or_equal(
    tmp_path_factory: pytest.TempPathFactory, places: list[tuple[float, int]], kept: float
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged-backup"
    if not folder.exists():
        folder.mkdir()
        make_queue(folder / "state")
        back_up_queue(folder / "state", folder / "backup", force=False)
    data = bytearray((folder / "backup").read_bytes())
    for place, change in places:
        data[int(place * len(data))] ^= change
    damaged, new = folder / "damaged", folder / "new"
    damaged.write_bytes(data[: round(kept * len(data))])
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        restore_queue(damaged, new, adopt=False)
    except (Refused, Failed) as error:
        assert is_one_line(error) and len(str(error)) <= 300
        assert not (new / QUEUE).exists()
    else:
        assert content(new) == content(folder / "state")
        assert not list(new.glob(".*"))


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE jobs SET job = x'00ff'",
        "UPDATE specs SET spec_json = '{}'",
        "UPDATE cluster SET epoch = 1000",
        "UPDATE backup SET made_seconds = 0",
        "DELETE FROM backup",
        "DELETE FROM cluster",
        "ALTER TABLE backup RENAME TO backups",
        "DROP TABLE specs",
        "CREATE TRIGGER surprise AFTER UPDATE ON cluster BEGIN DELETE FROM jobs; END",
    ],
)
def test_a_changed_backup_is_refused(tmp_path: Path, change: str) -> None:
    make_queue(tmp_path / "state")
    back_up_queue(tmp_path / "state", tmp_path / "backup", force=False)
    with sqlite3.connect(tmp_path / "backup") as connection:
        connection.execute(change)
    connection.close()
    before = content(tmp_path / "state")
    with pytest.raises(Refused, match="damaged, or no queue"):
        restore_queue(tmp_path / "backup", tmp_path / "state", adopt=False)
    assert content(tmp_path / "state") == before


def test_a_backup_of_another_cluster_is_refused_or_adopted(tmp_path: Path) -> None:
    make_queue(tmp_path / "a")
    make_queue(tmp_path / "b", jobs=5)
    back_up_queue(tmp_path / "a", tmp_path / "backup", force=False)
    (_, own), (_, other) = identity(tmp_path / "a"), identity(tmp_path / "b")
    with pytest.raises(Refused, match=f"belongs to cluster {own}, the state dir to {other}"):
        restore_queue(tmp_path / "backup", tmp_path / "b", adopt=False)
    assert restore_queue(tmp_path / "backup", tmp_path / "b", adopt=True).cluster == other
    assert identity(tmp_path / "b")[1] == other
    assert content(tmp_path / "b") == content(tmp_path / "a")

    shared = tmp_path / "shared"  # an optimizer's file `cluster` counts too
    shared.mkdir()
    write_cluster(shared / "cluster", OTHER_CLUSTER)
    with pytest.raises(Refused, match=OTHER_CLUSTER):
        restore_queue(tmp_path / "backup", shared, adopt=False)


def test_a_damaged_queue_is_replaced_and_kept(tmp_path: Path) -> None:
    state = tmp_path / "state"
    jobs = make_queue(state)
    back_up_queue(state, tmp_path / "backup", force=False)
    (state / QUEUE).write_bytes(b"no queue at all" * 1000)
    with pytest.raises(Refused, match="damaged, or no queue"):
        back_up_queue(state, tmp_path / "another", force=False)
    assert not (tmp_path / "another").exists()
    restored = restore_queue(tmp_path / "backup", state, adopt=False)
    assert restored.replaced_epoch is None and restored.replaced is not None
    assert restored.replaced.read_bytes().startswith(b"no queue at all")
    assert content(state) == jobs


def test_a_journal_of_the_replaced_queue_is_not_applied_to_the_restored_one(tmp_path: Path) -> None:
    state = tmp_path / "state"
    jobs = make_queue(state, jobs=50)
    back_up_queue(state, tmp_path / "backup", force=False)
    with sqlite3.connect(state / QUEUE) as connection:  # a process that dies within a transaction
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("UPDATE jobs SET job = zeroblob(2000)")
        crashed = tmp_path / "crashed"
        shutil.copytree(state, crashed)
        connection.rollback()
    connection.close()
    assert (crashed / f"{QUEUE}-journal").read_bytes()[:4] != bytes(4), "it must be undone"
    restore_queue(tmp_path / "backup", crashed, adopt=False)
    assert not (crashed / f"{QUEUE}-journal").exists()
    assert content(crashed) == jobs


def test_an_epoch_at_its_end_is_refused(tmp_path: Path) -> None:
    make_queue(tmp_path / "state")
    with sqlite3.connect(tmp_path / "state" / QUEUE) as connection:
        connection.execute("UPDATE cluster SET epoch = ?", (LAST_EPOCH - 1,))
    connection.close()
    back_up_queue(tmp_path / "state", tmp_path / "backup", force=False)
    with pytest.raises(Refused, match="too near to the last one"):
        restore_queue(tmp_path / "backup", tmp_path / "state", adopt=False)


def test_a_state_dir_in_use_is_refused(tmp_path: Path) -> None:
    make_queue(tmp_path / "state")
    back_up_queue(tmp_path / "state", tmp_path / "backup", force=False)
    use = StateDirUse(tmp_path / "state")
    with pytest.raises(NotYet, match="a daemon uses it; stop the daemon first"):
        restore_queue(tmp_path / "backup", tmp_path / "state", adopt=False)
    use.close()
    restore_queue(tmp_path / "backup", tmp_path / "state", adopt=False)


def test_a_slow_disk_ends_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_queue(tmp_path / "state")
    with JobQueue(tmp_path / "state" / QUEUE) as queue:
        queue.raise_epoch("a")
        queue.add(Job(name="large", state=QUEUED), "x" * (8 << 20))
    monkeypatch.setattr(backups, "COPY_SECONDS", 0.0)
    with pytest.raises(Failed, match="its aggregator can't write; back it up to a faster disk"):
        back_up_queue(tmp_path / "state", tmp_path / "backup", force=False)
    assert not list(tmp_path.glob("*backup*"))


def test_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    make_queue(tmp_path / "state")
    with small_disk(tmp_path / "disk", "2m") as disk:
        disk.fill(free_bytes=100_000)
        for _ in range(2):
            with pytest.raises(Failed, match="its disk is full; free space"):
                back_up_queue(tmp_path / "state", disk.path / "backup", force=False)
            assert [each.name for each in disk.path.iterdir()] == ["filler"]
        disk.empty()
        back_up_queue(tmp_path / "state", disk.path / "backup", force=False)
        old = (disk.path / "backup").read_bytes()
        disk.fill()
        with pytest.raises(Failed, match="its disk is full"):
            back_up_queue(tmp_path / "state", disk.path / "backup", force=True)
        assert (disk.path / "backup").read_bytes() == old
        (disk.path / "state").mkdir()
        disk.empty()
        jobs = make_queue(disk.path / "state", jobs=1)
        disk.fill()
        with pytest.raises(Failed, match="its disk is full"):
            restore_queue(disk.path / "backup", disk.path / "state", adopt=False)
        assert content(disk.path / "state") == jobs
        assert not list((disk.path / "state").glob(f"*{QUEUE}.[!j]*"))
