"""Tables of the queue's file, their version, and the migration of older files."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

from aggregator.storage.queue_copy import copy_file
from protos import jobs_pb2

FORMAT = 2
"""Version of the tables. An older file is migrated by the aggregator that takes it over; a newer one is refused."""

LIVE_STATES = (jobs_pb2.QUEUED, jobs_pb2.RUNNING)
"""States of jobs that have not ended."""

JOB_ROW_BYTES = 1_800
"""Size of a job's row. Its column `room` shrinks as the record grows, so that no update needs space on the disk."""

_CLUSTER = """
CREATE TABLE cluster (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    epoch INTEGER NOT NULL,
    identity TEXT NOT NULL DEFAULT ''
);
INSERT INTO cluster (only_row, epoch) VALUES (1, 0)
"""
_JOBS = """
CREATE TABLE jobs (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL DEFAULT '',
    request_id TEXT NOT NULL DEFAULT '',
    request_sha256 TEXT NOT NULL DEFAULT '',
    live INTEGER NOT NULL,
    job BLOB NOT NULL,
    fingerprint_json TEXT NOT NULL,
    room BLOB NOT NULL
);
CREATE UNIQUE INDEX job_requests ON jobs (owner, request_id) WHERE request_id != '';
CREATE INDEX live_jobs ON jobs (place) WHERE live;
CREATE INDEX live_jobs_of_owners ON jobs (owner) WHERE live;
CREATE TABLE specs (place INTEGER PRIMARY KEY, spec_json TEXT NOT NULL);
CREATE TABLE reserve (number INTEGER PRIMARY KEY, room BLOB NOT NULL)
"""
_SUCCESSION = """
CREATE TABLE IF NOT EXISTS leader (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    name TEXT NOT NULL,
    beat INTEGER NOT NULL,
    takeover_seconds REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS standbys (name TEXT PRIMARY KEY, looks INTEGER NOT NULL)
"""
_REMOVALS = """
CREATE TABLE IF NOT EXISTS removals (place INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE)
"""


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of an empty file, within the caller's transaction."""
    _execute(connection, _CLUSTER, _JOBS, _SUCCESSION, _REMOVALS, f"PRAGMA user_version = {FORMAT}")


def add_later_tables(connection: sqlite3.Connection) -> None:
    """Add tables that older versions did without: of leader and standbys, and of jobs that are being removed."""
    _execute(connection, _SUCCESSION, _REMOVALS)


def migrate(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Bring the tables from an older version to `FORMAT`, within the caller's write transaction.

    A copy of the file is beside it, complete and on disk, before the first change.

    Raises:
        sqlite3.Error, OSError, ValueError: the file is damaged, or there is no space; nothing has changed then.
    """
    copy_file(path, path.with_name(f"{path.name}.format-{version}"))
    bring_up_to_date(connection)


def bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Bring the tables from any older version to `FORMAT`, within the caller's write transaction.

    Raises:
        sqlite3.Error, ValueError: the file is damaged, or there is no space; the transaction must be rolled back.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for step in range(version, FORMAT):
        _MIGRATIONS[step](connection)
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def room_of(job: bytes, fingerprint_json: str) -> bytes:
    """Return the bytes that fill a job's row up to its fixed size."""
    return bytes(max(0, JOB_ROW_BYTES - len(job) - len(fingerprint_json.encode())))


def request_digest(name: str, spec_json: str) -> str:
    """Return the SHA-256 by which a repeated request is compared with the first one."""
    return hashlib.sha256(f"{name}\0{spec_json}".encode()).hexdigest()


def _from_1(connection: sqlite3.Connection) -> None:
    """Split the specs from the jobs, and add owners, request ids, the cluster's identity and the reserve."""
    _execute(
        connection,
        "ALTER TABLE cluster ADD COLUMN identity TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE jobs RENAME TO jobs_1",
        _JOBS,
        _SUCCESSION,
        "INSERT INTO specs SELECT place, spec_json FROM jobs_1",
    )
    rows = connection.execute("SELECT place, id, job, fingerprint_json FROM jobs_1 ORDER BY place")
    for place, name, job, fingerprint_json in rows.fetchall():
        live = jobs_pb2.Job.FromString(job).state in LIVE_STATES
        connection.execute(
            "INSERT INTO jobs (place, id, live, job, fingerprint_json, room) VALUES (?, ?, ?, ?, ?, ?)",
            (place, name, live, job, fingerprint_json, room_of(job, fingerprint_json)),
        )
    connection.execute("DROP TABLE jobs_1")


_MIGRATIONS: Mapping[int, Callable[[sqlite3.Connection], None]] = {1: _from_1}
"""Migrations by the version they start from; each leads to the next version."""


def _execute(connection: sqlite3.Connection, *scripts: str) -> None:
    """Execute statements one by one, since `executescript` would commit the transaction."""
    for script in scripts:
        for statement in script.split(";\n"):
            connection.execute(statement)
