"""Removal of ended jobs in two steps, so that a crash in between leaves nothing that is forgotten or half there.

`begin` takes a job out of the queue and notes its id, in one transaction. From then on nobody finds the job. Its log and
checkpoints are deleted next, perhaps by another process on another host, and `finish` deletes the note behind them.
Every note that is left is worked off by the next aggregator that leads.
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


def list_begun(connection: sqlite3.Connection, after: int, limit: int) -> list[tuple[int, str]]:
    """Return some jobs whose removal has begun, with their places, from the one after a place on.

    Raises:
        ValueError: The table is damaged.
    """
    query = "SELECT place, id FROM removals WHERE place > ? ORDER BY place LIMIT ?"
    rows = connection.execute(query, (after, limit)).fetchall()
    if not all(isinstance(place, int) and isinstance(job, str) for place, job in rows):
        raise ValueError("the removals' columns are not a number and text")
    return rows


def is_begun(connection: sqlite3.Connection, job: str) -> bool:
    """Return whether files of a removed job with this id may still be there."""
    return connection.execute("SELECT 1 FROM removals WHERE id = ?", (job,)).fetchone() is not None


def finish(connection: sqlite3.Connection, job: str) -> None:
    """Delete a job's note, within the caller's write transaction."""
    connection.execute("DELETE FROM removals WHERE id = ?", (job,))
