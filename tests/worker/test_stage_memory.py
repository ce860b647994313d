"""A worker never allocates more than the share of its stages, whatever it is asked to do."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import GPT2Config
from services.config.pipeline import PipelineConfig
from services.pipeline.exchange import ExactArray
from services.pipeline.split import StageRun
from services.tensors.kernels.arithmetic import Float32Array
from tests.support.compute_thread import in_thread
from tests.support.row_of_workers import ArrayBoard, MeshOfRow, Row, RowWorker
from worker.job_on_mesh import JobBuilder

BLOCKS, WIDTH = 16, 128
CHIP_BLOCKS, CHIP_WIDTH = 32, 256
"""Blocks of Llama 8B. Fewer would show what no stage can share: a pass through one block, beside its weights."""
LEAVES = 3
LARGEST_EXCESS = 1.1
"""Memory of a worker with stages, relative to its share of what a worker with the whole model takes."""
TEXT = "".join(f"{number} times {number} is {number * number}.\n" for number in range(60))


class RecordedBoard(ArrayBoard):
    """Board that keeps what was left there, for workers that run again alone."""

    is_recorded = False

    def put(self, key: tuple[Any, ...], array: ExactArray) -> None:
        """Leave an array."""
        if not self.is_recorded:
            super().put(key, array)

    def take(self, key: tuple[Any, ...]) -> ExactArray:
        """Return an array."""
        array = super().take(key)
        self._arrays[key] = array
        return array


@dataclass
class Memory:
    """Memory of one worker.

    Attributes:
        peak_bytes: most at once, with the emulated device's memory, which is the host's; 0 if it is not traced.
        chip_peak_bytes: most at once on the device.
        device_bytes: memory of the device between leases: that of the weights.
        share: elements of the worker's weights, relative to the layout.
    """

    peak_bytes: int
    chip_peak_bytes: int
    device_bytes: int
    share: float


def make_config(tmp_path: Path, stages: int, blocks: int = BLOCKS, width: int = WIDTH) -> JobConfig:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    # Weights dwarf activations, which stages keep as many of as their schedule says.
    model = GPT2Config(
        num_heads=2,
        embedding_dim=width,
        num_blocks=blocks,
        max_sequence_length=32,
        runner_type="memory_efficient",
    )
    pipeline = PipelineConfig(blocks_per_stage=(blocks // stages,) * stages) if stages > 1 else None
    return JobConfig(
        model=model,
        batch_size=1,
        validation_batch_size=1,
        num_workers=stages,
        pipeline=pipeline,
        device=DeviceConfig(mesh_shape=(1, 1), backend="emulator"),
        gradient_accumulation_steps=4,
        data=DataConfig(files=(CorpusFile(path=str(path), sha256=digest),)),
    )


def run_leases(row: Row, weights: Float32Array, out: Float32Array) -> Iterator[None]:
    """Let the workers do all that a job asks of them; yield after each lease. What they send goes to `out`."""
    row.initialise(out)
    yield
    row.load(weights)
    row.train(out, first=0, count=LEAVES)
    yield
    row.verify([0, 2])
    yield
    row.evaluate(first=0, count=2)
    yield
    row.train(out, first=0, count=LEAVES)
    yield


def measure(
    config: JobConfig, stages: StageRun | None, board: RecordedBoard, weights: Float32Array
) -> Memory:
    """Run a worker alone, and return what it takes."""
    meshes, out = MeshOfRow(1), weights.copy()
    if tracemalloc.is_tracing():
        tracemalloc.clear_traces()
    worker = RowWorker(config, stages, board, JobBuilder(in_thread(open_mesh=meshes.open)))
    try:
        row = Row.introduce([worker], meshes, board)
        for _ in run_leases(row, weights, out):
            memory = meshes.opened[0].handle.memory
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        worker.device.close()
    assert worker.core.job is not None and worker.core.job.built is not None
    share = worker.core.job.built.loads.elements / weights.size
    return Memory(peak_bytes, memory.peak_bytes, memory.live_bytes, share)


def measure_ends(whole_config: JobConfig, config: JobConfig) -> tuple[Memory, list[Memory]]:
    """Return what a worker with the whole model takes, and what those of the first and the last stage do."""
    board = RecordedBoard()
    alone = [StageRun(stage, 1) for stage in range(config.stages)]
    row = Row.build(config, alone, board)
    weights = np.random.default_rng(3).standard_normal(row.elements, np.float32) * np.float32(0.02)
    for _ in run_leases(row, weights, weights.copy()):
        pass
    row.close()
    whole = measure(whole_config, None, board, weights)
    board.is_recorded = True
    return whole, [measure(config, run, board, weights) for run in (alone[0], alone[-1])]


@pytest.mark.long
@pytest.mark.parametrize("stages", [2, 4])
def test_a_worker_needs_no_more_than_its_share(tmp_path: Path, stages: int) -> None:
    tracemalloc.start()
    try:
        whole, ends = measure_ends(make_config(tmp_path, 1), make_config(tmp_path, stages))
    finally:
        tracemalloc.stop()
    for found in ends:
        assert found.peak_bytes <= LARGEST_EXCESS * found.share * whole.peak_bytes
        assert found.device_bytes <= LARGEST_EXCESS * found.share * whole.device_bytes


@pytest.mark.long
@pytest.mark.parametrize("stages", [2, 4])
def test_a_chip_needs_no_more_than_its_share_amid_passes(tmp_path: Path, stages: int) -> None:
    whole, ends = measure_ends(
        *(make_config(tmp_path, count, CHIP_BLOCKS, CHIP_WIDTH) for count in (1, stages))
    )
    for found in ends:
        assert found.chip_peak_bytes <= LARGEST_EXCESS * found.share * whole.chip_peak_bytes
