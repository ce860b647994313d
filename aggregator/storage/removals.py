"""Removal of ended jobs in two steps, so that a crash in between leaves nothing that is forgotten or half there.

`begin` takes a job out of the queue and notes its id, in one transaction. From then on nobody finds the job. Its log
and checkpoints are deleted next, perhaps by another process on another host, and `finish` deletes the note behind them.
The next aggregator that leads works off every note that is left.
"""

from __future__ import annotations

import sqlite3


def begin(connection: sqlite3.Connection, job: str) -> bool:
    """Take an ended job out of the queue and note it, within the caller's write transaction.

    Deletions come first, so that the note fits in their space on a full disk.

    Returns:
        Whether there was such a job, and it had ended.
    """
    row = connection.execute("SELECT place FROM jobs WHERE id = ? AND NOT live", (job,)).fetchone()
    if row is None:
        return False
    connection.execute("DELETE FROM specs WHERE place = ?", row)
    connection.execute("DELETE FROM jobs WHERE place = ?", row)
    connection.execute("INSERT OR IGNORE INTO removals (id) VALUES (?)", (job,))
    return True


def list_begun(connection: sqlite3.Connection, limit: int) -> list[str]:
    """Return some jobs whose removal has begun, at most `limit`, the latest first.

    Raises:
        ValueError: the table is damaged.
    """
    rows = connection.execute("SELECT id FROM removals ORDER BY place DESC LIMIT ?", (limit,)).fetchall()
    if not all(isinstance(job, str) for (job,) in rows):
        raise ValueError("the removals' column is not text")
    return [job for (job,) in rows]


def is_begun(connection: sqlite3.Connection, job: str) -> bool:
    """Return whether files of a removed job with this id may still be there."""
    return connection.execute("SELECT 1 FROM removals WHERE id = ?", (job,)).fetchone() is not None


def finish(connection: sqlite3.Connection, job: str) -> None:
    """Delete a job's note, within the caller's write transaction."""
    connection.execute("DELETE FROM removals WHERE id = ?", (job,))
