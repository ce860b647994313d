"""Any reports: updated chunks reach the engine in the order of the layout, and measurements are numbers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.core import events as ev
from protos import plane_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.config.job import JobConfig
from services.config.load import load_job
from tests.optimizer.test_tensor_store import StoreDialogue
from tests.support.anything import message
from tests.support.cluster.bits import regression_config, write_config

LIMIT_SECONDS = 60
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "chunk": st.integers(0, 2),
    "step": st.integers(0, 2),
    "opening": st.just(1),
    "block_sums": st.lists(st.floats(), max_size=5),
}
REPORTS = [pb.PartOpened, pb.StagedChunk, pb.UpdatedPart, pb.PartBroke]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    return load_job(write_config(tmp_path_factory.mktemp("job"), regression_config()), [])[0]


@settings(max_examples=120, deadline=None)
@given(
    reports=st.lists(
        st.tuples(st.integers(0, 1), st.one_of([message(kind, **LIKELY) for kind in REPORTS])), max_size=12
    ),
    measures=st.booleans(),
)
def test_any_reports_keep_the_order_of_the_layout(
    config: JobConfig, reports: list[tuple[int, Any]], measures: bool
) -> None:
    async def scenario() -> StoreDialogue:
        dialogue = StoreDialogue()
        await dialogue.open(config)
        if measures:
            dialogue.store.measure(ev.Measure("j", 1))
        else:
            dialogue.store.update(ev.Update("j", 1, True, 1.0, 0.1), ChunkHeader(generation=1, step=2))
        for shard, body in reports:
            dialogue.report(shard, body)
            await asyncio.sleep(0)
        return dialogue

    dialogue = asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
    assert dialogue.updated == list(range(len(dialogue.updated))), (
        "in the order of the layout, each chunk once"
    )
    for report in dialogue.reports:
        assert not isinstance(report, ev.Measured) or not report.finite or report.norm >= 0
