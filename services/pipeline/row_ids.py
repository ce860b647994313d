"""Ids of rows: which aggregator has formed a row, and which row of a job it is.

Ids of one job never repeat, as each start of an aggregator has an epoch of its own. What comes late of a former row is
known by its id. Rows of two jobs may have the same id, so it is compared with the job's.
"""

from __future__ import annotations

_NUMBER_BITS = 32


def make_row_id(epoch: int, number: int) -> int:
    """Return the id of a row.

    Args:
        epoch: epoch of the aggregator that forms it.
        number: its number among the rows that this aggregator has formed for the job, from 1.
    """
    return epoch << _NUMBER_BITS | number


def row_number(row: int) -> int:
    """Return a row's number, as people see it, from its id."""
    return row & ((1 << _NUMBER_BITS) - 1)


def describe_row(row: int) -> str:
    """Return a row as text that tells rows of different aggregators apart, from its id."""
    return f"row {row_number(row)} of epoch {row >> _NUMBER_BITS}"
