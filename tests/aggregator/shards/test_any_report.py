"""Any reports: weights are sent in the order of the layout, and the norm of a COMMIT is a number."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos import plane_pb2 as pb
from services.protocol.plan import JobPlan
from tests.support.anything import message
from tests.support.dialogues.sharded_engine import CHUNKS, ShardedEngine, block_sums

LIMIT_SECONDS = 60
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "job": st.just("j"),
    "chunk": st.integers(0, 2),
    "step": st.integers(0, 2),
    "opening": st.just(1),
    "block_sums": st.lists(st.floats(), max_size=5) | st.lists(st.floats(0, 1e80), min_size=8, max_size=8),
}
STAGED = st.lists(message(pb.StagedChunk, **LIKELY), max_size=3)
REPORTS = [
    message(pb.StagedChunks, job=LIKELY["job"], chunks=STAGED),
    *(message(kind, **LIKELY) for kind in (pb.PartOpened, pb.UpdatedPart, pb.PartBroke)),
]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    reports=st.lists(st.tuples(st.integers(0, 1), st.one_of(REPORTS)), max_size=12),
    staged=st.sampled_from([0, 3, CHUNKS]),
)
def test_any_reports_keep_the_order_of_the_layout(
    tmp_path: Path, reports: list[tuple[int, Any]], staged: int
) -> None:
    async def scenario() -> None:
        dialogue = ShardedEngine(tmp_path, JobPlan(steps=9, micro_batches=2), 1, stall=60.0)
        dialogue.arrive(*range(CHUNKS))
        for chunk in range(CHUNKS - staged, CHUNKS):
            dialogue.staged(chunk, block_sums(chunk))
        before = 0
        for shard, body in reports:
            dialogue.report(shard, body)
            job = dialogue.engine.core.opened("j")
            if job is not None and dialogue.commits:
                assert before <= job.updated_chunks <= CHUNKS
                before = job.updated_chunks
        dialogue.engine.close()
        assert all(commit.grad_norm >= 0 for commit in dialogue.commits if commit.applied)
        assert len(dialogue.commits) <= 1

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
