"""Checks of a queue's file that is not in use: its structure, its tables, its jobs, and a backup's checksum.

SQLite checks how pages and indexes fit together, not the values in them. So a backup has a table `backup` with the
SHA-256 of all other tables' rows.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError

from aggregator.storage.queue_copy import connect
from aggregator.storage.schema import FORMAT, LIVE_STATES, check_format, create_tables
from protos import jobs_pb2
from services.errors import Refused
from services.printable import one_line
from services.protocol.hello import is_cluster
from services.protocol.versions import LAST_EPOCH

_SEAL = "CREATE TABLE backup (made_seconds REAL NOT NULL, sha256 TEXT NOT NULL)"


class QueueSummary(NamedTuple):
    """What a queue's file contains.

    Attributes:
        format: version of its tables.
        cluster: identity of its cluster; empty if it has none yet.
        epoch: epoch of the aggregator that led last.
        jobs: number of its jobs.
        live_jobs: number of those that have not ended.
        made_seconds: Unix time of the backup; None for a queue's file that no `tiermesh queue backup` has made.
    """

    format: int
    cluster: str
    epoch: int
    jobs: int
    live_jobs: int
    made_seconds: float | None


def seal(path: Path) -> None:
    """Add the time and a checksum of all tables to a backup.

    Raises:
        sqlite3.Error: the file can't be written, or is damaged.
    """
    with closing(connect(path, "rw")) as connection:
        connection.execute("PRAGMA journal_mode = MEMORY")
        made_seconds = time.time()
        checksum = _checksum(connection, made_seconds)
        connection.execute("BEGIN")
        connection.execute(_SEAL)
        connection.execute("INSERT INTO backup VALUES (?, ?)", (made_seconds, checksum))
        connection.execute("COMMIT")


def check_queue(path: Path, shown: str) -> QueueSummary:
    """Read a whole queue's file and return what it contains.

    Args:
        path: the file.
        shown: what it is, for errors.

    Raises:
        Refused: it is damaged, no queue, or of another version.
    """
    try:
        with closing(connect(path, "ro")) as connection:
            return _check(connection, shown)
    except (sqlite3.Error, DecodeError, ValueError, OverflowError) as error:
        raise damaged(shown, error) from None


def damaged(shown: str, error: Exception) -> Refused:
    """Return the error about a file in which something is wrong."""
    return Refused(f"{shown}: damaged, or no queue ({one_line(str(error), 80)}); use another copy of it")


def _check(connection: sqlite3.Connection, shown: str) -> QueueSummary:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != 0:  # an empty file has none
        check_format(version, shown)
    (damage,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if damage != "ok":
        raise ValueError(damage)
    made_seconds = _check_tables(connection, version)
    epoch, cluster = read_identity(connection)
    live = [_check_job(*row) for row in connection.execute("SELECT job FROM jobs")]
    return QueueSummary(version, cluster, epoch, len(live), sum(live), made_seconds)


def read_identity(connection: sqlite3.Connection) -> tuple[int, str]:
    """Return the epoch of a queue and the identity of its cluster, which is empty if it has none.

    Raises:
        sqlite3.Error, ValueError: the file is damaged.
    """
    rows = connection.execute("SELECT epoch, identity FROM cluster LIMIT 2").fetchall()
    if len(rows) != 1:
        raise ValueError(f"{len(rows)} epochs, expected 1")
    ((epoch, cluster),) = rows
    if not isinstance(epoch, int) or not 0 <= epoch < LAST_EPOCH:
        raise ValueError(f"the epoch is {epoch!r:.40}, expected a number below {LAST_EPOCH}")
    if not isinstance(cluster, str) or not (cluster == "" or is_cluster(cluster)):
        raise ValueError(f"the cluster's identity is {cluster!r:.40}, expected 16 hexadecimal digits")
    return epoch, cluster


def _check_job(record: object) -> bool:
    """Return whether a job has not ended, after checking its record (ValueError, DecodeError)."""
    if not isinstance(record, bytes):
        raise ValueError("a job's record is not bytes")
    return jobs_pb2.Job.FromString(record).state in LIVE_STATES


def _check_tables(connection: sqlite3.Connection, version: int) -> float | None:
    """Check a queue's tables and a backup's checksum; return the time of the backup, None if it is none."""
    found = {(kind, name) for kind, name in connection.execute("SELECT type, name FROM sqlite_master")}
    tables = {name for kind, name in found if kind == "table"}
    has_queue = version == FORMAT and tables - {"backup"} == _known_tables()
    if not has_queue or not {kind for kind, _ in found} <= {"table", "index"}:
        raise ValueError(f"format {version} with {len(tables)} tables, expected those of a queue")
    if "backup" not in tables:
        return None
    ((made_seconds, checksum),) = connection.execute("SELECT * FROM backup LIMIT 2").fetchall()
    if not isinstance(made_seconds, float) or _checksum(connection, made_seconds) != checksum:
        raise ValueError("its content does not have the checksum of the backup")
    return made_seconds


@cache
def _known_tables() -> frozenset[str]:
    """Return the names of all tables of a queue, SQLite's own among them."""
    with closing(sqlite3.connect(":memory:")) as connection:
        create_tables(connection)
        return frozenset(
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        )


def _checksum(connection: sqlite3.Connection, made_seconds: float) -> str:
    """Return the SHA-256 of a file's version, tables and rows, but the table `backup`, and of the backup's time."""
    digest = hashlib.sha256(repr((made_seconds, *connection.execute("PRAGMA user_version"))).encode())
    schema = connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name != 'backup' ORDER BY name"
    ).fetchall()
    digest.update(repr(schema).encode())
    known = _known_tables()
    for kind, name, _, _ in schema:
        if kind == "table" and name in known:
            for row in connection.execute(f"SELECT * FROM {name} ORDER BY rowid"):
                digest.update(repr(row).encode())
    return digest.hexdigest()
