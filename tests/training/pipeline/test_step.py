"""Whatever the split and the schedule, a pipeline in one process has the bits of the whole model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mesh.device import Mesh, open_mesh
from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import GPT2Config, LlamaConfig
from services.config.pipeline import PipelineConfig
from services.pipeline.exchange import Compute, FinishedPass
from services.pipeline.schedule import Pass
from tests.support.micro_batch import run_micro_batch
from training.parameter_placement import choose_axes
from training.pipeline.passes import PassPhase
from training.step import TrainingStep

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
EVEN = PipelineConfig(blocks_per_stage=(2, 2))
UNEVEN = PipelineConfig(blocks_per_stage=(2, 1, 1))
INTERLEAVED = PipelineConfig(blocks_per_stage=(2, 2), schedule="interleaved_1f1b", ranges_per_stage=2)
ONE_CHIP = DeviceConfig(mesh_shape=(1, 1))
TWO_CHIPS = DeviceConfig(mesh_shape=(2, 1), enable_ddp=True)


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., JobConfig]:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    data = DataConfig(files=(CorpusFile(path=str(path), sha256=digest),))

    def make(model: GPT2Config | LlamaConfig = TIED, **changes: Any) -> JobConfig:
        return JobConfig(
            model=model, **{"seed": 7, "batch_size": 4, "validation_batch_size": 4, "data": data, **changes}
        )

    return make


def split(config: JobConfig, pipeline: PipelineConfig, mesh: Mesh, **callbacks: Any) -> TrainingStep:
    """Return the step of all stages of a pipeline, which share a mesh."""
    meshes = dict.fromkeys(range(pipeline.stages), mesh)
    return TrainingStep(config.model_copy(update={"pipeline": pipeline}), meshes, **callbacks)


def load(step: TrainingStep, weights: Any) -> None:
    for index, entry in enumerate(step.layout.entries):
        step.load(index, weights[entry.offset : entry.stop])


class Leaves:
    """The gradients of a lease's micro-batches, in parts of ranges."""

    def __init__(self, step: TrainingStep, first: int, count: int) -> None:
        self.gradients = np.full((count, step.layout.elements), np.nan, np.float32)
        self.orders: dict[int, list[int]] = {}
        self._ranges = step.ranges
        self._first = first

    def add(self, range_index: int, index: int, compute: Compute) -> FinishedPass:
        self.orders.setdefault(range_index, []).append(index)
        offsets: list[int] = []
        finished = compute(self.gradients[index - self._first, self._ranges[range_index]], offsets.append)
        assert offsets[-1] == 0 and offsets == sorted(offsets, reverse=True)
        return finished


@pytest.mark.parametrize(
    ("pipeline", "dtype", "model", "device"),
    [
        (GPIPE, "float32", TIED, ONE_CHIP),
        (UNEVEN, "bfloat16", TIED, ONE_CHIP),
        (EVEN, "float32", LLAMA, ONE_CHIP),
        (INTERLEAVED, "bfloat16", LLAMA, ONE_CHIP),
        (INTERLEAVED, "float32", TIED, TWO_CHIPS),
    ],
)
def test_each_micro_batch_has_the_bits_of_the_whole_model(
    make_config: Callable[..., JobConfig],
    pipeline: PipelineConfig,
    dtype: str,
    model: GPT2Config | LlamaConfig,
    device: DeviceConfig,
) -> None:
    config = make_config(model, device=device)
    assert device.mesh_shape is not None
    with open_mesh(device.mesh_shape, backend="emulator", dtype=dtype, axes=choose_axes(device)) as mesh:
        whole = TrainingStep(config, mesh)
        weights = whole.initial_weights()
        load(whole, weights)
        step = split(config, pipeline, mesh)
        assert step.layout == whole.layout
        assert step.initial_weights().tobytes() == weights.tobytes()
        load(step, weights)
        leaves = Leaves(step, 3, 5)
        losses = step.micro_batches(2, 3, 5, leaves.add)
        assert all(order == [3, 4, 5, 6, 7] for order in leaves.orders.values())
        assert leaves.orders.keys() == set(range(len(pipeline.split.ranges)))
        for index, loss in zip(range(3, 8), losses, strict=True):
            expected = np.empty(whole.layout.elements, np.float32)
            assert run_micro_batch(whole, 2, index, expected) == loss
            assert leaves.gradients[index - 3].tobytes() == expected.tobytes()
        assert step.evaluate(0) == whole.evaluate(0)
        assert step.checkpoint_files() == whole.checkpoint_files()
        assert step.fingerprint() == whole.fingerprint()


@pytest.mark.parametrize("device", [ONE_CHIP, TWO_CHIPS])
def test_submeshes_give_the_bits_of_one_mesh_like_theirs(
    make_config: Callable[..., JobConfig], device: DeviceConfig
) -> None:
    config = make_config(device=device, pipeline=INTERLEAVED, num_workers=2, gradient_accumulation_steps=4)
    axes = choose_axes(device)
    assert device.mesh_shape is not None
    rows, columns = device.mesh_shape
    results = []
    for stages in (1, 2):
        with open_mesh((stages * rows, columns), backend="emulator", axes=axes) as mesh:
            meshes = mesh.split(2, axes) if stages > 1 else (mesh, mesh)
            step = TrainingStep(config, dict(enumerate(meshes)))
            load(step, step.initial_weights())
            leaves = Leaves(step, 0, 4)
            losses = step.micro_batches(1, 0, 4, leaves.add)
            results.append((losses, leaves.gradients.tobytes(), step.evaluate(0), step.fingerprint()))
            step.close()
    assert results[0] == results[1]


def test_one_micro_batch_becomes_ready_from_its_end_to_its_start(
    make_config: Callable[..., JobConfig], mesh: Mesh
) -> None:
    config = make_config()
    whole = TrainingStep(config, mesh)
    load(whole, whole.initial_weights())
    step = split(config, EVEN, mesh)
    load(step, step.initial_weights())
    results = []
    for each in (whole, step):
        out = np.full(step.layout.elements, np.nan, np.float32)
        offsets: list[int] = []

        def ready(offset: int, out: Any = out, offsets: list[int] = offsets) -> None:
            assert np.isfinite(out[offset:]).all()
            offsets.append(offset)

        results.append((run_micro_batch(each, 1, 2, out, ready), out.tobytes()))
        assert offsets[-1] == 0 and offsets == sorted(offsets, reverse=True)
    assert results[0] == results[1]


def test_a_pass_waits_for_the_weights_of_its_range_only(
    make_config: Callable[..., JobConfig], mesh: Mesh
) -> None:
    step = split(make_config(), UNEVEN, mesh)
    weights, entries = step.initial_weights(), step.layout.entries
    fetched: list[int] = []
    backward_passes: list[int] = []

    def fetch(index: int) -> None:
        assert not backward_passes, "all weights are used in forward passes first"
        fetched.append(index)
        step.load(index, weights[entries[index].offset : entries[index].stop])

    def add_leaf(range_index: int, index: int, compute: Compute) -> FinishedPass:
        backward_passes.append(range_index)
        own = step.ranges[range_index]
        return compute(np.empty(own.stop - own.start, np.float32), lambda offset: None)

    step.expect(fetch)
    step.micro_batches(0, 0, 1, add_leaf)
    assert fetched == list(range(len(entries)))


def test_what_a_leaf_raises_ends_the_lease_and_frees_its_activations(
    make_config: Callable[..., JobConfig], mesh: Mesh
) -> None:
    step = split(make_config(), GPIPE, mesh)
    load(step, step.initial_weights())
    step.micro_batches(0, 0, 1, Leaves(step, 0, 1).add)
    before = mesh.handle.memory.live_bytes

    def refuse(range_index: int, index: int, compute: Compute) -> FinishedPass:
        assert mesh.handle.memory.live_bytes > before
        raise KeyError(index)

    with suppress(KeyError):
        step.micro_batches(0, 0, 4, refuse)
        raise AssertionError("the error was lost")
    assert mesh.handle.memory.live_bytes == before


def test_gradients_that_are_not_finite_are_told_in_index_order_with_the_first_parameter(
    make_config: Callable[..., JobConfig], mesh: Mesh
) -> None:
    told: dict[str, list[tuple[int, str]]] = {"whole": [], "ranges": []}
    config = make_config()
    whole = TrainingStep(config, mesh, on_non_finite=lambda *found: told["whole"].append(found))
    step = split(config, EVEN, mesh, on_non_finite=lambda *found: told["ranges"].append(found))
    weights = whole.initial_weights()
    entry = whole.layout.entries[3]
    weights[entry.offset] = np.inf
    load(whole, weights)
    load(step, weights)
    for index in range(3):
        run_micro_batch(whole, 0, index, np.empty(whole.layout.elements, np.float32))
    step.micro_batches(0, 0, 3, Leaves(step, 0, 3).add)
    assert told["ranges"] == told["whole"] and len(told["whole"]) == 3


def test_each_pass_is_observed(make_config: Callable[..., JobConfig], mesh: Mesh) -> None:
    observed: list[tuple[PassPhase, int, int]] = []

    class Around:
        def __init__(self, phase: PassPhase, one: Pass | None = None) -> None:
            assert one is not None and one.is_backward == (phase is PassPhase.BACKWARD_PASS)
            observed.append((phase, one.range_index, one.micro_batch))

        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None: ...

    step = split(make_config(), EVEN, mesh, around_phase=Around)
    load(step, step.initial_weights())
    step.micro_batches(0, 4, 3, Leaves(step, 4, 3).add)
    assert sorted(observed) == sorted(product(PassPhase, (0, 1), (4, 5, 6)))
