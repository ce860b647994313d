"""Space that the queue keeps in reserve, so that records of running jobs can be written while the disk is full.

Two things need space: pages of the file, for a record that has outgrown its row, and the rollback journal, which gets
a copy of each page before it changes. The table `reserve` has one row to a page. Rewriting all rows makes the journal
as large as all of them, and the journal keeps its size. Removing rows frees pages.
"""

from __future__ import annotations

import sqlite3

_ROWS = 64
_ROW_BYTES = 3_500  # more than half a page of 4096 bytes, so that each row takes a page
_ROWS_AT_ONCE = 16
"""Rows that one release frees. Few enough that the journal, made by rewriting all rows, holds the freed pages too."""


def fill(connection: sqlite3.Connection) -> None:
    """Bring the reserve's pages to their full number, within the caller's write transaction.

    Raises:
        sqlite3.Error: there is no space; the transaction must be rolled back.
    """
    query = f"INSERT OR IGNORE INTO reserve VALUES (?, zeroblob({_ROW_BYTES}))"
    connection.executemany(query, [(number,) for number in range(_ROWS)])


def enlarge_journal(connection: sqlite3.Connection) -> None:
    """Change every page of the reserve, so that the journal takes a copy of each, within a transaction of its own.

    Raises:
        sqlite3.Error: there is no space; the transaction must be rolled back.
    """
    # Random bytes, since SQLite does not write a page whose content stays the same.
    connection.execute(f"UPDATE reserve SET room = randomblob({_ROW_BYTES})")


def release(connection: sqlite3.Connection) -> bool:
    """Free some pages of the reserve, within the caller's write transaction; return False if none are left."""
    query = f"DELETE FROM reserve WHERE number IN (SELECT number FROM reserve LIMIT {_ROWS_AT_ONCE})"
    return connection.execute(query).rowcount > 0
