"""Fixes taken out again, each of which the seeds must find: what held before an insider was reckoned with."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from aggregator.core.membership import members
from aggregator.core.rows.former import RowFormer
from aggregator.core.sums.step_sum import StepSum
from services.protocol.versions import Version
from tests.insider.lies import Trick
from tests.insider.ports import Role


def waits_for_chunks_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Never take a lease back that a worker has computed, whether it sends chunks or not."""
    patch.setattr(StepSum, "note_owed", lambda self, assignment, now: False)


def takes_loaded_weights_for_work(patch: pytest.MonkeyPatch) -> None:
    """Give a worker a lease in each step that was late with those of all steps before."""
    patch.setattr(members, "MOST_STALLS", sys.maxsize)


def tries_other_rows_only_with_a_spare(patch: pytest.MonkeyPatch) -> None:
    """Have a row that takes too long wait for ever where no spare is there."""
    replace_late = RowFormer.replace_late

    def with_a_spare(self: RowFormer, version: Version | None, now: float) -> None:
        if self._has_spare():
            replace_late(self, version, now)

    patch.setattr(RowFormer, "replace_late", with_a_spare)


ALLOCATES_WHAT_IS_DESCRIBED = {
    "role": Role.WORKER, "tricks": [Trick.FIELD], "kind": "description", "field": "layout",
}  # fmt: skip
"""What an insider lies about that has memory allocated for another layout: finding 1 of issue 24."""
PINS_WHAT_THE_FIRST_SAYS = {
    "role": Role.WORKER, "tricks": [Trick.FIELD], "kind": "ready", "field": "fingerprint",
}  # fmt: skip
"""What an insider lies about that has the honest refused for ever: finding 2 of issue 24."""

MUTATIONS: list[Any] = [
    (
        waits_for_chunks_for_ever,
        {"role": Role.WORKER, "tricks": [Trick.FIELD, Trick.WITHHELD], "kind": "ChunkHeader"},
    ),
    pytest.param(
        tries_other_rows_only_with_a_spare,
        {"rows": True, "role": Role.NEIGHBOUR, "tricks": [Trick.WITHHELD], "kind": "ArrayHeader"},
        marks=pytest.mark.long,
    ),
    (takes_loaded_weights_for_work, {"role": Role.WORKER, "tricks": [Trick.WITHHELD], "kind": "computed"}),
]
"""Mutations, and what the insider lies about so that few seeds are needed."""
