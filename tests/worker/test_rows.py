"""Workers with the stages of a pipeline give the bits of one worker with the whole model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mesh.device import open_mesh
from protos import cluster_pb2 as pb
from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import GPT2Config, LlamaConfig
from services.config.pipeline import PipelineConfig
from services.errors import Refused
from services.pipeline.split import StageRun
from services.tensors import layout, layout_parts
from tests.support.row_of_workers import JOB, MakeRow, Row
from training.pipeline.submeshes import divide_mesh
from training.range_step import RangeStep
from worker.row_exchange import NeighbourLost

TEXT = "".join(f"{number} times {number} is {number * number}.\n" for number in range(60))
SIZES: dict[str, Any] = {
    "num_heads": 2,
    "embedding_dim": 64,
    "num_blocks": 4,
    "max_sequence_length": 32,
    "dropout_prob": 0.1,
}
TIED = GPT2Config(**SIZES, weight_tying=True)
RECOMPUTING = GPT2Config(**SIZES, weight_tying=True, runner_type="memory_efficient")
LLAMA = LlamaConfig(**SIZES, num_groups=1, weight_tying=False)
EVEN = PipelineConfig(blocks_per_stage=(2, 2))
UNEVEN = PipelineConfig(blocks_per_stage=(1, 2, 1), hide_transfers=False)
GPIPE = PipelineConfig(blocks_per_stage=(1, 3), schedule="gpipe")
INTERLEAVED = PipelineConfig(blocks_per_stage=(2, 2), schedule="interleaved_1f1b", ranges_per_stage=2)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small model have many chunks, and borders of stages inside them."""
    for module in (layout, layout_parts):
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", 10_000)


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., JobConfig]:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    data = DataConfig(files=(CorpusFile(path=str(path), sha256=digest),))

    def make(
        model: Any, pipeline: PipelineConfig | None, device_ids: tuple[int, ...] = (), **changes: Any
    ) -> JobConfig:
        fields = {"seed": 7, "batch_size": 2, "validation_batch_size": 2, "data": data, **changes}
        return JobConfig(
            model=model,
            pipeline=pipeline,
            num_workers=1 if pipeline is None else pipeline.stages,
            device=DeviceConfig(mesh_shape=(1, 1), backend="emulator", device_ids=device_ids),
            gradient_accumulation_steps=8,
            **fields,
        )

    return make


@pytest.fixture
def make_row() -> Iterator[MakeRow]:
    made: list[Row] = []

    def make(config: JobConfig, stages: Sequence[StageRun | None]) -> Row:
        for row in made:
            row.close()
        made[:] = [Row.build(config, stages)]
        return made[0]

    yield make
    for row in made:
        row.close()


def each_alone(stages: int) -> list[StageRun]:
    return [StageRun(stage, 1) for stage in range(stages)]


@pytest.mark.parametrize(
    ("model", "pipeline", "stages"),
    [
        (TIED, EVEN, each_alone(2)),
        (TIED, INTERLEAVED, each_alone(2)),
        (LLAMA, UNEVEN, each_alone(3)),
        (TIED, UNEVEN, [StageRun(0, 1), StageRun(1, 2)]),
        (RECOMPUTING, GPIPE, each_alone(2)),
        (LLAMA, INTERLEAVED, [StageRun(0, 2)]),
    ],
)
def test_a_row_has_the_bits_of_one_worker(
    make_config: Callable[..., JobConfig],
    make_row: MakeRow,
    model: GPT2Config | LlamaConfig,
    pipeline: PipelineConfig,
    stages: list[StageRun],
) -> None:
    results: list[Any] = []
    for parts in ([None], stages):
        # A worker of several stages has a submesh for each, unless the config names its chips.
        device_ids = (0,) if len(parts) > 1 else ()
        row = make_row(make_config(model, None if parts == [None] else pipeline, device_ids), parts)
        weights = row.initialise()
        row.load(weights)
        total, computed = row.train(first=3, count=5)
        losses = [loss for each in computed for loss in each.findings.losses]
        evaluated = row.evaluate(first=0, count=2)
        row.load(weights + total * 1e-3, step=1)
        later, _ = row.train(step=1, first=0, count=1)
        results.append((weights.tobytes(), total.tobytes(), evaluated, later.tobytes()))
        if parts != [None]:
            assert len(losses) == 5
            assert all(each.tokens == computed[0].tokens for each in computed)
    assert results[0] == results[1]
    assert len(results[0][2]) == 2


@pytest.fixture
def row(make_config: Callable[..., JobConfig], make_row: MakeRow) -> Row:
    """Build a row of two workers with a stage each, which have their initial weights."""
    row = make_row(make_config(TIED, EVEN, (0,)), each_alone(2))
    row.load(row.initialise())
    return row


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_dropped_lease_wakes_a_worker_that_waits_for_its_neighbour(row: Row, waiting: int) -> None:
    expected, _ = row.train(first=0, count=2)
    lease = row.lease(pb.TRAIN, to=[waiting], first=0, count=4)
    row.board.wait_for_waiting(lease)
    row.workers[waiting].order(pb.Revoke(job=JOB, lease=lease))
    found, _ = row.train(first=0, count=2)
    assert found.tobytes() == expected.tobytes()


def test_a_worker_stops_while_it_waits_for_its_neighbour(row: Row) -> None:
    lease = row.lease(pb.TRAIN, to=[1], first=0, count=1)
    row.board.wait_for_waiting(lease)
    row.workers[1].device.close()
    assert lease in row.board.dropped


def test_a_neighbour_that_is_lost_is_named(row: Row) -> None:
    row.board.lost = NeighbourLost("w2", "not heard for 20 s")
    lease = row.lease(pb.EVALUATE, to=[1], first=0, count=1)
    failure = row.workers[1].wait_for(pb.Failure)
    assert (failure.lease, failure.neighbour, failure.reason) == (lease, "w2", "not heard for 20 s")


def test_a_lease_for_which_the_chips_lack_memory_fails_as_such(
    make_config: Callable[..., JobConfig], make_row: MakeRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*_: Any) -> Any:
        raise RuntimeError("Out of Memory: Not enough space to allocate 64 B DRAM buffer across 12 banks")

    row = make_row(make_config(TIED, UNEVEN, (0,)), [StageRun(0, 2), StageRun(2, 1)])
    row.load(row.initialise())
    monkeypatch.setattr(RangeStep, "forward", forward)
    row.lease(pb.TRAIN, to=[0], first=0, count=1)
    failure = row.workers[0].wait_for(pb.Failure)
    assert (failure.too_large, failure.first_stage, failure.stages) == (True, 0, 2)


def test_a_worker_that_gets_other_stages_builds_them(row: Row) -> None:
    expected, _ = row.train(first=0, count=2)
    first, second = row.workers
    for worker, stages in ((first, StageRun(1, 1)), (second, StageRun(0, 1))):
        worker.join(stages)
    swapped = Row.introduce([second, first], row.mesh, row.board)
    swapped.load(swapped.initialise())
    found, _ = swapped.train(first=0, count=2)
    assert found.tobytes() == expected.tobytes()


def test_each_stage_reports_its_gradients_that_are_not_finite(row: Row) -> None:
    weights = row.initialise()
    weights[:] = np.inf
    row.load(weights, step=1)
    row.lease(pb.TRAIN, step=1, first=2, count=2)
    found = [worker.wait_for(pb.Computed).findings.non_finite for worker in row.workers]
    assert [[each.micro_batch for each in of_stage] for of_stage in found] == [[2, 3], [2, 3]]
    first, last = (of_stage[0].parameter for of_stage in found)
    assert "blocks.1" in first and "blocks" not in last, "the first in the order of the backward pass"


def test_tokens_of_a_row_are_counted_once(row: Row) -> None:
    _, computed = row.train(first=0, count=3)
    counted = [
        worker.metrics.registry.get_sample_value("tiermesh_tokens_total", {"job": JOB, "role": "worker"})
        for worker in row.workers
    ]
    assert sum(each or 0 for each in counted) == computed[0].tokens == computed[1].tokens
    rates = [
        worker.metrics.registry.get_sample_value("tiermesh_tokens_per_second", {"job": JOB, "role": "worker"})
        for worker in row.workers
    ]
    assert rates == [None, 0], "known after another lease, and of the last stage alone"


def test_stages_that_the_job_does_not_have_are_refused(make_config: Callable[..., JobConfig]) -> None:
    config = make_config(TIED, EVEN)
    with open_mesh((1, 1), backend="emulator") as mesh, pytest.raises(Refused, match="stages 1-2 ordered"):
        divide_mesh(config, mesh, StageRun(1, 2))
