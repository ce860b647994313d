"""Backup of a queue while an aggregator may be using it, and its restore while none does.

A backup is one SQLite file. It is complete or absent, whatever is killed or full. A restore leaves the replaced queue
beside the new one, which takes its name in one step.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from aggregator.core.succession import raise_restored_epoch
from aggregator.storage.queue_check import QueueSummary, check_queue, damaged, read_identity, seal
from aggregator.storage.queue_copy import connect, copy_database, new_queue_file, sync_file
from services.durable_files import sync_folder
from services.errors import Failed, NotYet, Refused, is_out_of_space
from services.input_files import open_input_file
from services.instrumentation.failpoints import hit_failpoint
from services.printable import one_line, printable_path
from services.protocol.versions import LAST_EPOCH
from services.runtime.cluster_identity import CLUSTER_FILE, StateDirUse, read_cluster
from services.timeouts import STANDARD_TIMEOUTS

QUEUE_FILE = "queue.sqlite"

COPY_SECONDS = 0.8 * STANDARD_TIMEOUTS.lock
"""Longest time that a backup keeps the aggregator from writing. It is less than what the aggregator waits."""
MOST_REPLACED = 1_000
"""Maximum number of replaced queues beside a queue."""


class Restored(NamedTuple):
    """A restored queue.

    Attributes:
        backup: what the backup contains.
        cluster: identity of the restored queue; empty if it gets one at its first start.
        epoch: epoch that the next aggregator exceeds.
        replaced: the queue that was there before, under its new name; None if there was none.
        replaced_epoch: the epoch of that one; None if it can't be read.
    """

    backup: QueueSummary
    cluster: str
    epoch: int
    replaced: Path | None
    replaced_epoch: int | None


class _Former(NamedTuple):
    """Epoch and identity of the queue that a restore replaces; None and empty if they can't be read."""

    epoch: int | None
    cluster: str


def back_up_queue(state_dir: Path, target: Path, *, force: bool) -> QueueSummary:
    """Copy the queue of an aggregator, which may be at work, into a checked file that survives power loss.

    Args:
        state_dir: the aggregator's state dir.
        target: the backup.
        force: whether it may replace a file.

    Raises:
        Refused: there is no queue, it is damaged, or the target can't be written.
        NotYet: the queue stays locked, or the disk is full.
        Failed: the copy takes too long, or a disk is broken.
    """
    queue = state_dir / QUEUE_FILE
    shown = f"queue {printable_path(queue)}"
    open_input_file("--state-dir", queue).close()
    _check_target(queue, target, force=force)
    with _explained(shown, target), new_queue_file(target) as temporary:
        copy_database(queue, temporary, COPY_SECONDS)
        hit_failpoint("queue.backup.copied")
        seal(temporary)
        summary = check_queue(temporary, shown)
    hit_failpoint("queue.backup.after")
    return summary


def restore_queue(backup: Path, state_dir: Path, *, adopt: bool) -> Restored:
    """Put a backup into a state dir that no daemon uses, with an epoch above any that was seen.

    Args:
        backup: the backup, or another copy of a queue; it stays as it is.
        state_dir: the aggregator's state dir.
        adopt: whether the backup of another cluster takes the identity of the state dir.

    Raises:
        Refused: the backup is damaged, no queue, of another version or of another cluster.
        NotYet: a daemon uses the state dir, or its disk is full.
        Failed: a disk is broken. The state dir has its queue from before.
    """
    open_input_file("", backup).close()
    shown = f"backup {printable_path(backup)}"
    if not state_dir.is_dir():
        raise Refused(
            f"--state-dir {printable_path(state_dir)}: is no folder; create it for the aggregator's user, or correct "
            "the path"
        )
    with closing(StateDirUse(state_dir, exclusive=True)):
        queue = state_dir / QUEUE_FILE
        for leftover in state_dir.glob(f".{QUEUE_FILE}.*"):
            leftover.unlink(missing_ok=True)
        former = _read_former(queue)
        with _explained(shown, queue), new_queue_file(queue) as temporary:
            copy_database(backup, temporary, mode="ro")
            summary = check_queue(temporary, shown)
            cluster = _choose_cluster(shown, summary, former, adopt=adopt)
            epoch = _choose_epoch(summary, former)
            _prepare(temporary, cluster, epoch)
            _give_to_owner(state_dir, temporary)
            sync_file(temporary)
            hit_failpoint("queue.restore.before")
            replaced = _keep_former(queue)
            hit_failpoint("queue.restore.kept")
        hit_failpoint("queue.restore.after")
    return Restored(summary, cluster, epoch, replaced, former.epoch)


def _check_target(queue: Path, target: Path, *, force: bool) -> None:
    """Check that a backup may be written to a path (Refused)."""
    where = f"-o {printable_path(target)}"
    try:
        if target.is_dir() or (target.exists() and not target.is_file()):
            raise Refused(f"{where}: is no regular file; give the path of a file")
        if not target.parent.is_dir():
            raise Refused(f"{where}: its folder does not exist; create it, or correct the path")
        if target.parent.samefile(queue.parent) and target.name.startswith(QUEUE_FILE):
            raise Refused(f"{where}: belongs to the queue itself; give another path, best on another disk")
        if (target.exists() or target.is_symlink()) and not force:
            raise Refused(f"{where}: exists already; give another path, or --force to replace it")
    except (OSError, ValueError) as error:  # a name that is too long, or has a NUL byte
        raise Refused(f"{where}: {getattr(error, 'strerror', None) or error}; correct the path") from None


@contextmanager
def _explained(shown: str, target: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the file system into one line (NotYet, Failed, Refused)."""
    where = printable_path(target)
    full = NotYet(f"{where}: not written, since its disk is full; free space, then try again")
    try:
        yield
    except sqlite3.Error as error:
        text = one_line(str(error), 80)
        if "locked" in text:
            raise NotYet(
                f"{shown}: locked by another process for more than {STANDARD_TIMEOUTS.lock:g} s; try again"
            ) from None
        if "full" in text:
            raise full from None
        if "malformed" in text or "not a database" in text:
            raise damaged(shown, error) from None
        raise Failed(f"{shown}: not copied to {where} ({text}), which is unchanged") from None
    except OSError as error:
        if is_out_of_space(error):
            raise full from None
        raise Failed(f"{where}: not written ({error.strerror or error}); it is unchanged") from None


def _read_former(queue: Path) -> _Former:
    """Return epoch and identity of the queue that is there, after a dead process's transaction in it was undone."""
    cluster = read_cluster(queue.with_name(CLUSTER_FILE))
    if not queue.exists():
        return _Former(None, cluster)
    open_input_file("--state-dir", queue).close()
    try:
        with closing(connect(queue, "rw")) as connection:
            epoch, own = read_identity(connection)
    except (sqlite3.Error, ValueError):
        return _Former(None, cluster)
    return _Former(epoch, own or cluster)


def _choose_cluster(shown: str, backup: QueueSummary, former: _Former, *, adopt: bool) -> str:
    """Return the identity of the restored queue (Refused if the backup is of another cluster)."""
    if former.cluster and backup.cluster and backup.cluster != former.cluster and not adopt:
        raise Refused(
            f"{shown}: belongs to cluster {backup.cluster}, the state dir to {former.cluster}; give the right backup, "
            "or --adopt to move its jobs to the state dir's cluster"
        )
    return former.cluster or backup.cluster


def _choose_epoch(backup: QueueSummary, former: _Former) -> int:
    epoch = raise_restored_epoch(backup.epoch, former.epoch or 0, random.SystemRandom().random())
    if epoch >= LAST_EPOCH:
        raise Refused(
            f"epoch {max(backup.epoch, former.epoch or 0)}: too near to the last one, {LAST_EPOCH}; if the replaced "
            "queue is damaged, move it away"
        )
    return epoch


def _prepare(queue: Path, cluster: str, epoch: int) -> None:
    """Give a copy of a backup this identity and epoch, and nobody who leads."""
    with closing(connect(queue, "rw")) as connection:
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("BEGIN")
        connection.execute("DROP TABLE IF EXISTS backup")
        connection.execute("UPDATE cluster SET epoch = ?, identity = ?", (epoch, cluster))
        connection.execute("UPDATE leader SET takeover_seconds = 0")
        connection.execute("DELETE FROM standbys")
        connection.execute("COMMIT")


def _give_to_owner(state_dir: Path, queue: Path) -> None:
    """Give what root has made to the owner of the state dir, whose daemon must be able to open it."""
    if os.geteuid() == 0:
        owner = state_dir.stat()
        for path in (queue, *state_dir.glob("cluster.lock")):
            os.chown(path, owner.st_uid, owner.st_gid)


def _keep_former(queue: Path) -> Path | None:
    """Give the queue that is there a second name, and remove its journal from beside the first one.

    SQLite would take a journal that a dead process left for one of the new queue.
    """
    journal = queue.with_name(f"{queue.name}-journal")
    names = (queue.with_name(f"{queue.name}.replaced-{number}") for number in range(1, MOST_REPLACED + 1))
    kept = next((each for each in names if not any(queue.parent.glob(f"{each.name}*"))), None)
    if kept is None:
        raise Refused(f"{queue}: has {MOST_REPLACED} replaced queues beside it; remove some")
    former = [each for each in (queue, journal) if each.exists()]
    for each in former:
        os.link(each, each.with_name(each.name.replace(queue.name, kept.name, 1)))
    sync_folder(queue.parent)
    if journal in former:
        journal.unlink()
        sync_folder(queue.parent)
    return kept if queue in former else None
