"""The queue on disk: jobs with their complete specs, and the epoch that fences a replaced aggregator.

It is an SQLite file with a rollback journal and full synchronisation: what a method has written survives kill -9 and
power loss when it returns. A write blocks for a few fsyncs, which take milliseconds, so keep writes off an event loop
that moves tensors. Any thread may call.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from google.protobuf.message import DecodeError

from aggregator.core.succession import Deposed, LeaderSighting
from protos import jobs_pb2
from services.errors import Failed, Refused, TiermeshError
from services.instrumentation.failpoints import hit_failpoint
from services.protocol.versions import LAST_EPOCH
from services.timeouts import STANDARD_TIMEOUTS, Timeouts

FORMAT = 1
"""Version of the tables; a file with another version is refused."""

_TABLES = """
CREATE TABLE cluster (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), epoch INTEGER NOT NULL);
INSERT INTO cluster VALUES (1, 0);
CREATE TABLE jobs (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    job BLOB NOT NULL,
    spec_json TEXT NOT NULL,
    fingerprint_json TEXT NOT NULL
);
"""
_SUCCESSION_TABLES = (
    "CREATE TABLE IF NOT EXISTS leader (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), name TEXT NOT NULL,"
    " beat INTEGER NOT NULL, takeover_seconds REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS standbys (name TEXT PRIMARY KEY, looks INTEGER NOT NULL)",
)
"""Tables that are added if they are missing, as in files from before there were standbys."""


class JobQueue:
    """Jobs in order of submission, and the epoch.

    Args:
        path: The queue's file, which is created if it is missing.
        lock_seconds: How long a write waits for another process that writes.

    Raises:
        Refused: The file can't be opened, isn't a queue, or has another version.
    """

    def __init__(self, path: Path, lock_seconds: float = STANDARD_TIMEOUTS.lock) -> None:
        self.path = path
        self._lock_seconds = lock_seconds
        self._epoch: int | None = None  # this aggregator's, once raised
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
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

    def __enter__(self) -> JobQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file once no thread uses it."""
        with self._lock:
            self._connection.close()

    # ---- who leads ----

    @property
    def epoch(self) -> int:
        """This aggregator's epoch, which must have been raised before."""
        assert self._epoch is not None
        return self._epoch

    def raise_epoch(self, name: str = "", takeover_seconds: float = STANDARD_TIMEOUTS.takeover) -> int:
        """Take the cluster over with an epoch one higher than any before, which is on disk when this returns.

        Args:
            name: The aggregator's name, for its standbys.
            takeover_seconds: Time without a beat after which a standby may take over.

        Raises:
            Failed: The file can't be written.
        """
        with self._transaction():
            epoch = self._claim(name, takeover_seconds)
        return self._claimed(epoch)

    def take_over(self, seen: LeaderSighting, name: str, takeover_seconds: float) -> int | None:
        """Raise the epoch as a standby; return None if the leader has changed since it was seen.

        Raises:
            Failed: The file can't be written.
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
        execute("INSERT OR REPLACE INTO leader VALUES (1, ?, 0, ?)", (name, takeover_seconds))
        execute("DELETE FROM standbys WHERE name = ?", (name,))
        hit_failpoint("aggregator.epoch.before")
        return epoch

    def _claimed(self, epoch: int) -> int:
        hit_failpoint("aggregator.epoch.after")
        self._epoch = epoch
        return epoch

    @contextmanager
    def fenced(self) -> Iterator[None]:
        """Prevent takeovers while the block runs, for writes to other files on the same storage.

        Raises:
            Deposed: A newer aggregator has taken over already.
            Failed: The file can't be locked.
        """
        with self._transaction():
            self._check_fence()
            yield

    def standbys(self) -> dict[str, int]:
        """Return how often each standby has looked, by name.

        Raises:
            Deposed: A newer aggregator has taken over.
            Failed: The file can't be read.
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
            Deposed: A newer aggregator has taken over.
            Failed: The file can't be written.
        """
        with self.fenced():
            self._connection.execute("UPDATE leader SET beat = beat + 1")
            for name in forgotten:
                self._connection.execute("DELETE FROM standbys WHERE name = ?", (name,))

    def resign(self) -> None:
        """Let a standby take over at once.

        Raises:
            Deposed: A newer aggregator has taken over.
            Failed: The file can't be written.
        """
        with self.fenced():
            self._connection.execute("UPDATE leader SET takeover_seconds = 0")

    def look(self, name: str) -> LeaderSighting:
        """Count a look of the standby with this name, and return what it sees of the leader.

        Raises:
            Failed: The file can't be read or written.
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
            Failed: The file can't be written.
        """
        with self._transaction():
            self._connection.execute("DELETE FROM standbys WHERE name = ?", (name,))

    def _sighting(self, known: bool = True) -> LeaderSighting:
        epoch = self._stored_epoch()
        row = self._connection.execute("SELECT beat, name, takeover_seconds FROM leader").fetchone()
        if row is None:
            # There was no leader yet, or one from before there were standbys, which does not beat.
            return LeaderSighting(
                epoch, 0, "an older version", STANDARD_TIMEOUTS.takeover if epoch else 0.0, known
            )
        beat, name, takeover_seconds = row
        if not (isinstance(beat, int) and isinstance(name, str) and isinstance(takeover_seconds, float)):
            raise ValueError("the leader's columns are not a number, text and seconds")
        if not 0 <= takeover_seconds < math.inf:
            raise ValueError(
                f"the leader's takeover_seconds is {takeover_seconds}, expected a number of 0 or more"
            )
        return LeaderSighting(epoch, beat, name, takeover_seconds, known)

    # ---- jobs ----

    def save(self, job: jobs_pb2.Job, spec_json: str, fingerprint: Mapping[str, str]) -> None:
        """Store a job, which is on disk when this returns; a new job goes to the end of the queue.

        Args:
            job: The job's record, with its id.
            spec_json: The complete job.
            fingerprint: The fingerprint the job is pinned to; empty before it had a worker.

        Raises:
            Deposed: A newer aggregator has taken over.
            Failed: The file can't be written.
        """
        with self.fenced():
            self._connection.execute(
                "INSERT INTO jobs (id, job, spec_json, fingerprint_json) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET job = excluded.job, spec_json = excluded.spec_json,"
                " fingerprint_json = excluded.fingerprint_json",
                (job.id, job.SerializeToString(), spec_json, json.dumps(dict(fingerprint), sort_keys=True)),
            )
            hit_failpoint("aggregator.save.before")
        hit_failpoint("aggregator.save.after")

    def jobs(self) -> list[tuple[jobs_pb2.Job, str, dict[str, str]]]:
        """Return every job's record, spec and fingerprint, in order of submission.

        Raises:
            Failed: The file can't be read.
        """
        with self._lock, self._explain_errors():
            rows = self._connection.execute(
                "SELECT job, spec_json, fingerprint_json FROM jobs ORDER BY place"
            ).fetchall()
            return [_row(*row) for row in rows]

    def _open(self) -> None:
        execute = self._connection.execute
        # EXTRA is FULL plus an fsync of the folder when the journal is deleted. Without it, power loss could restore
        # the journal, and with it the state before the commit.
        execute("PRAGMA journal_mode = DELETE")
        execute("PRAGMA synchronous = EXTRA")
        with self._transaction():
            version = execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and not execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in _TABLES.split(";\n"):
                    execute(statement)
                execute(f"PRAGMA user_version = {FORMAT}")
            elif version != FORMAT:
                raise Refused(
                    f"queue {self.path}: format {version}, expected {FORMAT}; it belongs to another "
                    "program or version: choose another --state-dir"
                )
            for statement in _SUCCESSION_TABLES:
                execute(statement)
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
        if "full" in text:
            return Failed(f"{where}: the disk is full; free space, then start the aggregator again")
        return Failed(
            f"{where}: damaged or no queue at all ({text}); put a good copy there, or move it away to start "
            "with an empty queue (checkpoints stay)"
        )


def open_queue(state_dir: Path, timeouts: Timeouts) -> JobQueue:
    """Return the queue of an aggregator's state folder.

    Raises:
        Refused: It can't be used.
    """
    return JobQueue(state_dir / "queue.sqlite", timeouts.lock)


def _row(
    job: object, spec_json: object, fingerprint_json: object
) -> tuple[jobs_pb2.Job, str, dict[str, str]]:
    """Return a row's values after checking their types, since SQLite lets a column have any (ValueError)."""
    if not (isinstance(job, bytes) and isinstance(spec_json, str) and isinstance(fingerprint_json, str)):
        raise ValueError("a job's columns are not bytes, text and text")
    fingerprint = json.loads(fingerprint_json)
    if not isinstance(fingerprint, dict) or not all(isinstance(each, str) for each in fingerprint.values()):
        raise ValueError("a job's fingerprint is no mapping of text to text")
    return jobs_pb2.Job.FromString(job), spec_json, fingerprint
