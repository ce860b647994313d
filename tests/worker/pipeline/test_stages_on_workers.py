"""Stages on several workers, whose arrays go over links, have the bits of the same stages in one process."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mesh.device import Mesh, open_mesh
from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig, WireConfig
from services.config.models import GPT2Config, LlamaConfig
from services.config.pipeline import PipelineConfig
from services.pipeline.exchange import Compute, FinishedPass, LocalExchange, PassExchange
from services.pipeline.split import StageRun
from tests.support.linked_workers import LIMIT_SECONDS, LinkedWorker, linked_workers, make_lease
from training.parameter_placement import choose_axes
from training.step import TrainingStep
from worker.pipeline.array_plan import ArrayPlan

TEXT = "".join(f"{number} times {number} is {number * number}.\n" for number in range(60))
SIZES: dict[str, Any] = {
    "num_heads": 2,
    "embedding_dim": 64,
    "num_blocks": 4,
    "max_sequence_length": 32,
    "dropout_prob": 0.1,
}
TIED = GPT2Config(**SIZES, weight_tying=True)
LLAMA = LlamaConfig(**SIZES, num_groups=1, weight_tying=False)
GPIPE = PipelineConfig(blocks_per_stage=(1, 3), schedule="gpipe")
UNEVEN = PipelineConfig(blocks_per_stage=(2, 1, 1))
FOUR = PipelineConfig(blocks_per_stage=(1, 1, 1, 1))
INTERLEAVED = PipelineConfig(blocks_per_stage=(2, 2), schedule="interleaved_1f1b", ranges_per_stage=2)
ONE_CHIP = DeviceConfig(mesh_shape=(1, 1))
TWO_CHIPS = DeviceConfig(mesh_shape=(2, 1), enable_ddp=True)

Leases = Sequence[tuple[int, int]]
"""First micro-batch and number of micro-batches of each lease."""


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., JobConfig]:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    data = DataConfig(files=(CorpusFile(path=str(path), sha256=digest),))

    def make(model: GPT2Config | LlamaConfig, pipeline: PipelineConfig, **changes: Any) -> JobConfig:
        given = {
            "seed": 7,
            "batch_size": 4,
            "validation_batch_size": 2,
            "data": data,
            "gradient_accumulation_steps": 4,
            **changes,
        }
        return JobConfig(model=model, pipeline=pipeline, num_workers=pipeline.stages, **given)

    return make


@dataclass
class Outcome:
    """Results of some stages."""

    gradients: dict[tuple[int, int], bytes] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    evaluated: list[tuple[float, int]] = field(default_factory=list)

    def join(self, other: Outcome) -> None:
        self.gradients.update(other.gradients)
        self.losses += other.losses
        self.evaluated += other.evaluated


def run_stages(
    config: JobConfig,
    mesh: Mesh,
    run: StageRun,
    open_exchange: Callable[[TrainingStep, int], PassExchange],
    leases: Leases,
) -> Outcome:
    """Train leases of micro-batches (first, count) and evaluate two batches, in some stages."""
    outcome = Outcome()
    meshes = dict.fromkeys(range(run.first, run.stop), mesh)
    stages = TrainingStep(config, meshes)
    weights = np.linspace(-0.1, 0.1, stages.layout.elements, dtype=np.float32)
    for index, entry in enumerate(stages.layout.entries):
        stages.load(index, weights[entry.offset : entry.stop])

    def add_leaf(range_index: int, index: int, compute: Compute) -> FinishedPass:
        own = stages.ranges[range_index]
        out = np.empty(own.stop - own.start, np.float32)
        finished = compute(out, lambda offset: None)
        outcome.gradients[range_index, index] = out.tobytes()
        return finished

    for number, (first, count) in enumerate(leases):
        exchange = open_exchange(stages, number)
        outcome.losses += stages.micro_batches(2, first, count, add_leaf, exchange)
    exchange = open_exchange(stages, len(leases))
    found = [stages.evaluate(index, exchange) for index in (0, 1)]
    outcome.evaluated += [each for each in found if each is not None]
    stages.close()
    return outcome


def run_on(
    workers: Sequence[LinkedWorker], runs: Sequence[int], config: JobConfig, mesh: Mesh, leases: Leases
) -> Outcome:
    """Run the stages of a row, each worker's on a thread and a part of the mesh of its own."""
    outcomes: dict[str, Outcome] = {}
    errors: list[BaseException] = []

    def run(worker: LinkedWorker, own: Mesh, stages: StageRun) -> None:
        def open_exchange(built: TrainingStep, number: int) -> PassExchange:
            lease = make_lease(number + 1)
            return worker.links.open_lease(lease, ArrayPlan.of(config, built.array_sizes))

        try:
            outcomes[worker.name] = run_stages(config, own, stages, open_exchange, leases)
        except BaseException as error:
            errors.append(error)
            for each in workers:
                each.set_row(None)

    meshes = mesh.split(len(workers), choose_axes(config.device))
    firsts = [0, *accumulate(runs)]
    threads = [
        threading.Thread(target=run, args=(worker, own, StageRun(first, count)), daemon=True)
        for worker, own, first, count in zip(workers, meshes, firsts, runs, strict=False)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive(), "a worker waits for ever"
    if errors:
        raise errors[0]
    whole = Outcome()
    for worker in workers:
        whole.join(outcomes[worker.name])
    return whole


def open_parts(config: JobConfig, dtype: str, parts: int) -> Mesh:
    """Open a mesh that can be split into parts, each as the job wants it."""
    device = config.device
    assert device.mesh_shape is not None
    rows, columns = device.mesh_shape
    return open_mesh((parts * rows, columns), backend="emulator", dtype=dtype, axes=choose_axes(device))


@pytest.mark.parametrize(
    ("pipeline", "runs", "dtype", "model", "device"),
    [
        (GPIPE, (1, 1), "float32", TIED, ONE_CHIP),
        (UNEVEN, (1, 1, 1), "bfloat16", TIED, ONE_CHIP),
        (UNEVEN, (1, 2), "float32", LLAMA, ONE_CHIP),
        (FOUR, (1, 2, 1), "float32", TIED, TWO_CHIPS),
        (INTERLEAVED, (1, 1), "bfloat16", TIED, ONE_CHIP),
        (INTERLEAVED, (1, 1), "float32", LLAMA, ONE_CHIP),
    ],
)
def test_the_bits_are_those_of_one_process(
    make_config: Callable[..., JobConfig],
    pipeline: PipelineConfig,
    runs: tuple[int, ...],
    dtype: str,
    model: GPT2Config | LlamaConfig,
    device: DeviceConfig,
) -> None:
    config = make_config(model, pipeline, device=device)
    leases = [(3, 5), (8, 2)]
    whole = StageRun(0, pipeline.stages)
    with open_parts(config, dtype, 1) as mesh:
        expected = run_stages(config, mesh, whole, lambda stages, number: LocalExchange(), leases)
    with open_parts(config, dtype, len(runs)) as mesh, linked_workers(runs) as workers:
        found = run_on(workers, runs, config, mesh, leases)
    assert found == expected
    assert len(found.losses) == 7 and len(found.evaluated) == 2


def test_rounded_activations_change_the_result_a_little(make_config: Callable[..., JobConfig]) -> None:
    losses = []
    for wire in (WireConfig(), WireConfig(activations="bfloat16")):
        config = make_config(LLAMA, GPIPE, wire_dtype=wire)
        with open_parts(config, "float32", 2) as mesh, linked_workers((1, 1)) as workers:
            losses.append(run_on(workers, (1, 1), config, mesh, [(0, 2)]).losses)
    assert losses[0] != losses[1]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)
