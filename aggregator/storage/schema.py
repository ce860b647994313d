"""Tables of the queue's file, and their version."""

from __future__ import annotations

import hashlib
import sqlite3

from protos import jobs_pb2
from services.errors import Refused

FORMAT = 3
"""Version of the tables. Files of other versions are refused."""

LIVE_STATES = (jobs_pb2.QUEUED, jobs_pb2.RUNNING, jobs_pb2.PAUSED)
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
    room BLOB NOT NULL
);
CREATE UNIQUE INDEX job_requests ON jobs (owner, request_id) WHERE request_id != '';
CREATE INDEX live_jobs ON jobs (place) WHERE live;
CREATE INDEX live_jobs_of_owners ON jobs (owner) WHERE live;
CREATE TABLE specs (place INTEGER PRIMARY KEY, spec_json TEXT NOT NULL);
CREATE TABLE reserve (number INTEGER PRIMARY KEY, room BLOB NOT NULL)
"""
_SUCCESSION = """
CREATE TABLE leader (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    name TEXT NOT NULL,
    beat INTEGER NOT NULL,
    takeover_seconds REAL NOT NULL
);
CREATE TABLE standbys (name TEXT PRIMARY KEY, looks INTEGER NOT NULL)
"""
_REMOVALS = """
CREATE TABLE removals (place INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE)
"""


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of an empty file, within the caller's transaction."""
    _execute(connection, _CLUSTER, _JOBS, _SUCCESSION, _REMOVALS, f"PRAGMA user_version = {FORMAT}")


def check_format(version: int, shown: str) -> None:
    """Check the version of a file's tables.

    Args:
        version: the file's `user_version`.
        shown: what the file is, for the error.

    Raises:
        Refused: it is another one than `FORMAT`.
    """
    if version > FORMAT:
        raise Refused(
            f"{shown}: format {version}, of a newer version of Tiermesh, expected {FORMAT}; install the newer version"
        )
    if version < FORMAT:
        raise Refused(
            f"{shown}: format {version}, of an older version of Tiermesh or of another program, expected {FORMAT}; "
            "choose another file, or a new --state-dir"
        )


def room_of(job: bytes) -> bytes:
    """Return the bytes that fill a job's row up to its fixed size."""
    return bytes(max(0, JOB_ROW_BYTES - len(job)))


def request_digest(name: str, spec_json: str) -> str:
    """Return the SHA-256 by which a repeated request is compared with the first one."""
    return hashlib.sha256(f"{name}\0{spec_json}".encode()).hexdigest()


def _execute(connection: sqlite3.Connection, *scripts: str) -> None:
    """Execute statements one by one, since `executescript` would commit the transaction."""
    for script in scripts:
        for statement in script.split(";\n"):
            connection.execute(statement)
