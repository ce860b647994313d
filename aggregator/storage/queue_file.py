"""The queue's file: an SQLite database that several aggregators may have open, of which one leads and writes.

Its rollback journal is kept between transactions (PERSIST) and synchronised with each, so what a method has written
survives kill -9 and power loss when it returns. Journal and tables have space in reserve (reserve.py). A write blocks
for a few fsyncs, which take milliseconds. Any thread may call.
"""

from __future__ import annotations

import math
import random
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from google.protobuf.message import DecodeError

from aggregator.core.succession import Deposed, LeaderSighting, raise_restored_epoch
from aggregator.storage import reserve, schema
from services.errors import Failed, NotYet, Refused, TiermeshError, is_out_of_space
from services.instrumentation.failpoints import hit_failpoint
from services.protocol.hello import is_cluster
from services.protocol.versions import LAST_EPOCH
from services.runtime.cluster_identity import make_cluster
from services.timeouts import STANDARD_TIMEOUTS

JOURNAL_BYTES = 1 << 20
"""Size to which the journal is cut after a transaction that needed more."""


class DiskFull(NotYet):
    """Write for which the disk has no space left; nothing was written."""


Opened = TypeVar("Opened", bound="QueueFile")


class QueueFile:
    """The open file: its transactions, the epoch, and who leads.

    Args:
        path: the queue's file, which is created if it is missing.
        lock_seconds: how long a write waits for another process that writes.

    Raises:
        Refused: the file can't be opened, isn't a queue, or has another version.
    """

    def __init__(self, path: Path, lock_seconds: float = STANDARD_TIMEOUTS.lock) -> None:
        self.path = path
        self._lock_seconds = lock_seconds
        self._epoch: int | None = None  # this aggregator's, once raised
        self._cluster = ""
        self._reserve_is_full = False
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise Refused(
                f"queue {path}: its folder can't be made ({error.strerror}); choose another --state-dir"
            ) from None
        with self._explain_errors():
            self._connection = sqlite3.connect(
                path, timeout=lock_seconds, isolation_level=None, check_same_thread=False
            )
        try:
            with self._explain_errors():
                self._open()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file once no thread uses it."""
        with self._lock:
            self._connection.close()

    # ---- which cluster ----

    def read_cluster(self) -> str:
        """Return the cluster's identity; empty before the first epoch was raised.

        Raises:
            Failed: the file can't be read.
        """
        with self._lock, self._explain_errors():
            (cluster,) = self._connection.execute("SELECT identity FROM cluster").fetchone() or (None,)
            if not isinstance(cluster, str) or not (cluster == "" or is_cluster(cluster)):
                raise ValueError(
                    f"the cluster's identity is {cluster!r:.100}, expected 16 hexadecimal digits"
                )
            return cluster

    def adopt(self, cluster: str) -> None:
        """Make this the queue of another cluster.

        Raises:
            Failed: the file can't be written.
        """
        with self._transaction():
            self._connection.execute("UPDATE cluster SET identity = ?", (cluster,))

    # ---- who leads ----

    @property
    def cluster(self) -> str:
        """Identity of the cluster, which exists once the epoch was raised."""
        assert self._cluster
        return self._cluster

    @property
    def epoch(self) -> int:
        """This aggregator's epoch, which must have been raised before."""
        assert self._epoch is not None
        return self._epoch

    def raise_epoch(self, name: str = "", takeover_seconds: float = STANDARD_TIMEOUTS.takeover) -> int:
        """Take the cluster over with an epoch one higher than any before, which is on disk when this returns.

        Args:
            name: the aggregator's name, for its standbys.
            takeover_seconds: time without a beat after which a standby may take over.

        Raises:
            Failed: the file can't be written.
        """
        with self._transaction():
            epoch = self._claim(name, takeover_seconds)
        return self._claimed(epoch)

    def take_over(self, seen: LeaderSighting, name: str, takeover_seconds: float) -> int | None:
        """Raise the epoch as a standby; return None if the leader has changed since it was seen.

        Raises:
            Failed: the file can't be written.
        """
        with self._transaction():
            if seen != self._sighting():
                return None
            epoch = self._claim(name, takeover_seconds)
        return self._claimed(epoch)

    def _claim(self, name: str, takeover_seconds: float) -> int:
        """Raise the stored epoch within a transaction, and return it."""
        epoch = self._stored_epoch() + 1
        execute = self._connection.execute
        execute("UPDATE cluster SET epoch = ?", (epoch,))
        execute("UPDATE cluster SET identity = ? WHERE identity = ''", (make_cluster(),))
        execute("INSERT OR REPLACE INTO leader VALUES (1, ?, 0, ?)", (name, takeover_seconds))
        execute("DELETE FROM standbys WHERE name = ?", (name,))
        hit_failpoint("aggregator.epoch.before")
        return epoch

    def _claimed(self, epoch: int) -> int:
        hit_failpoint("aggregator.epoch.after")
        self._epoch, self._cluster = epoch, self.read_cluster()
        with suppress(DiskFull):  # then the first job that is submitted fills it
            self._fill_reserve()
        return epoch

    def _fill_reserve(self) -> None:
        """Bring the reserve to its full size.

        Raises:
            Deposed: a newer aggregator has taken over.
            DiskFull: there is no space for it.
            Failed: the file can't be written.
        """
        self._reserve_is_full = False
        with self.fenced():
            reserve.fill(self._connection)
        with self.fenced():
            reserve.enlarge_journal(self._connection)
        self._reserve_is_full = True

    def skip_epochs(self, obeyed_epoch: int) -> None:
        """End this leadership so that the next one's epoch is above any that was seen, as far as is known.

        Args:
            obeyed_epoch: an epoch that a peer has obeyed. Other peers may have obeyed higher ones.

        Raises:
            Deposed: a newer aggregator has taken over through this queue.
            Failed: the file can't be written.
        """
        raised = raise_restored_epoch(self.epoch, obeyed_epoch, random.SystemRandom().random())
        with self.fenced():
            self._connection.execute("UPDATE cluster SET epoch = ?", (min(raised, LAST_EPOCH - 1),))
            self._connection.execute("UPDATE leader SET takeover_seconds = 0")

    @contextmanager
    def fenced(self) -> Iterator[None]:
        """Prevent takeovers while the block runs, for writes to other files on the same storage.

        Raises:
            Deposed: a newer aggregator has taken over already.
            Failed: the file can't be locked.
        """
        with self._transaction():
            self._check_fence()
            yield

    def standbys(self) -> dict[str, int]:
        """Return how often each standby has looked, by name.

        Raises:
            Deposed: a newer aggregator has taken over.
            Failed: the file can't be read.
        """
        with self._lock, self._explain_errors():
            self._check_fence()
            rows = self._connection.execute("SELECT name, looks FROM standbys").fetchall()
            if not all(isinstance(name, str) and isinstance(looks, int) for name, looks in rows):
                raise ValueError("the standbys' columns are not text and number")
            return dict(rows)

    def beat(self, forgotten: Iterable[str] = ()) -> None:
        """Show the standbys that their leader lives, and forget some of them.

        Raises:
            Deposed: a newer aggregator has taken over.
            Failed: the file can't be written.
        """
        with self.fenced():
            self._connection.execute("UPDATE leader SET beat = beat + 1")
            for name in forgotten:
                self._connection.execute("DELETE FROM standbys WHERE name = ?", (name,))

    def resign(self) -> None:
        """Let a standby take over at once.

        Raises:
            Deposed: a newer aggregator has taken over.
            Failed: the file can't be written.
        """
        with self.fenced():
            self._connection.execute("UPDATE leader SET takeover_seconds = 0")

    def look(self, name: str) -> LeaderSighting:
        """Count a look of the standby with this name, and return what it sees of the leader.

        Raises:
            Failed: the file can't be read or written.
        """
        with self._transaction():
            execute = self._connection.execute
            known = execute("UPDATE standbys SET looks = looks + 1 WHERE name = ?", (name,)).rowcount > 0
            if not known:
                execute("INSERT INTO standbys VALUES (?, 0)", (name,))
            return self._sighting(known)

    def leave(self, name: str) -> None:
        """Remove a standby, which no longer waits to take over.

        Raises:
            Failed: the file can't be written.
        """
        with self._transaction():
            self._connection.execute("DELETE FROM standbys WHERE name = ?", (name,))

    def _sighting(self, known: bool = True) -> LeaderSighting:
        epoch = self._stored_epoch()
        row = self._connection.execute("SELECT beat, name, takeover_seconds FROM leader").fetchone()
        if row is None:  # there was no leader yet
            return LeaderSighting(epoch, 0, "", 0.0, known)
        beat, name, takeover_seconds = row
        if not (isinstance(beat, int) and isinstance(name, str) and isinstance(takeover_seconds, float)):
            raise ValueError("the leader's columns are not a number, text and seconds")
        if not 0 <= takeover_seconds < math.inf:
            raise ValueError(
                f"the leader's takeover_seconds is {takeover_seconds}, expected a number of 0 or more"
            )
        return LeaderSighting(epoch, beat, name, takeover_seconds, known)

    def _open(self) -> None:
        execute = self._connection.execute
        # A journal that is kept has its space already when the disk is full. Its header is overwritten and synchronised
        # to commit. EXTRA makes the same promise for a journal that is deleted, by another program for instance.
        execute("PRAGMA journal_mode = PERSIST")
        execute(f"PRAGMA journal_size_limit = {JOURNAL_BYTES}")
        execute("PRAGMA synchronous = EXTRA")
        execute(
            "PRAGMA secure_delete = OFF"
        )  # else pages that the reserve frees are written, and need the journal too
        with self._transaction():
            version = execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and not execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                schema.create_tables(self._connection)
            else:
                schema.check_format(version, f"queue {self.path}")
        damage = execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != "ok":
            raise sqlite3.DatabaseError(damage)

    def _stored_epoch(self) -> int:
        row = self._connection.execute("SELECT epoch FROM cluster").fetchone()
        if row is None or not isinstance(row[0], int) or not 0 <= row[0] < LAST_EPOCH:
            raise ValueError(f"the epoch is {row and row[0]!r:.100}, expected a number below {LAST_EPOCH}")
        return row[0]

    def _check_fence(self) -> None:
        """Check that the stored epoch is ours; a writer calls this within its transaction."""
        stored = self._stored_epoch()
        if stored != self._epoch:
            raise Deposed(
                f"queue {self.path}: epoch {stored} has taken over from epoch {self._epoch}: another "
                "aggregator runs on this state dir; this one must end"
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run the block as a write transaction, with the write lock taken first so that no read is stale."""
        with self._lock, self._explain_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # Some errors, such as a full disk, have rolled back already.
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Turn errors of SQLite and of decoding into one line with the file and how to fix it."""
        try:
            yield
        except (sqlite3.Error, DecodeError, ValueError, RecursionError) as error:
            raise self._explain(" ".join(str(error).split())) from None

    @contextmanager
    def _explain_os_errors(self) -> Iterator[None]:
        """Turn errors of the file system into one line with the file."""
        try:
            yield
        except OSError as error:
            if is_out_of_space(error):
                raise self._explain("full") from None
            raise Failed(f"queue {self.path}: not written: {error.strerror or error}") from None

    def _explain(self, text: str) -> TiermeshError:
        where = f"queue {self.path}"
        if "locked" in text:
            return Failed(
                f"{where}: locked by another process for more than {self._lock_seconds:g} s; is another aggregator "
                "running on this state dir?"
            )
        if "readonly" in text:
            return Failed(f"{where}: read-only; make the file and its folder writable for this user")
        if "unable to open" in text:
            return Refused(
                f"{where}: can't be opened; choose another --state-dir or make it writable for this user"
            )
        if "I/O error" in text:
            return NotYet(
                f"{where}: the disk fails ({text}); look for its errors in the system's log, and repair it"
            )
        if "full" in text:
            return DiskFull(f"{where}: the disk is full; free space, then try again")
        return Failed(
            f"{where}: damaged, or not a queue ({text}); put a good copy there, or move it away to start "
            "with an empty queue (checkpoints stay)"
        )
