"""Ranges of a model's blocks together give the bits of the whole model, however their passes are interleaved."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.device import Mesh, open_mesh
from mesh.memory import capture_memory
from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import GPT2Config, LlamaConfig, MLPConfig
from services.errors import Refused
from services.pipeline.split import BlockRange
from tests.support.micro_batch import run_micro_batch
from tests.support.ranges import Ranges
from training.models.build import build_range
from training.parameter_placement import choose_axes
from training.step import TrainingStep

TEXT = "".join(f"{number} times {number} is {number * number}.\n" for number in range(60))
STEP, MICRO_BATCHES = 5, 3

MODELS: dict[str, GPT2Config | LlamaConfig] = {
    "gpt2": GPT2Config(
        num_heads=2,
        embedding_dim=64,
        num_blocks=3,
        max_sequence_length=32,
        dropout_prob=0.1,
        weight_tying=False,
    ),
    "gpt2 tied": GPT2Config(
        num_heads=2,
        embedding_dim=64,
        num_blocks=3,
        max_sequence_length=32,
        dropout_prob=0.1,
        weight_tying=True,
        positional_embedding_type="fixed",
        runner_type="memory_efficient",
    ),
    "llama": LlamaConfig(
        num_heads=4,
        num_groups=2,
        embedding_dim=128,
        num_blocks=3,
        max_sequence_length=32,
        dropout_prob=0.1,
        weight_tying=False,
        runner_type="memory_efficient",
    ),
    "llama tied": LlamaConfig(
        num_heads=4, num_groups=2, embedding_dim=128, num_blocks=3, max_sequence_length=32, weight_tying=True
    ),
}

DEVICES = {
    "one device": DeviceConfig(mesh_shape=(1, 1)),
    "ddp": DeviceConfig(mesh_shape=(2, 1), enable_ddp=True),
    "tp": DeviceConfig(mesh_shape=(1, 2), enable_tp=True),
    "fsdp": DeviceConfig(mesh_shape=(1, 2), enable_fsdp=True),
    "fsdp x tp": DeviceConfig(mesh_shape=(2, 2), enable_fsdp=True, enable_tp=True),
}

SPLITS = [
    lengths
    for stages in range(1, 4)
    for lengths in itertools.product(range(1, 4), repeat=stages)
    if sum(lengths) == 3
]


def list_passes(order: str) -> Iterator[tuple[str, int]]:
    """Yield forward and backward passes of micro-batches through all ranges."""
    if order == "gpipe":
        yield from (("forward", index) for index in range(MICRO_BATCHES))
        yield from (("backward", index) for index in range(MICRO_BATCHES))
        return
    ahead = {"one by one": 1, "two in flight": 2}[order]
    for index in range(MICRO_BATCHES + ahead - 1):
        if index < MICRO_BATCHES:
            yield "forward", index
        if index >= ahead - 1:
            yield "backward", index - ahead + 1


def run_ranges(ranges: Ranges, order: str) -> list[tuple[float, Any]]:
    results = []
    for kind, index in list_passes(order):
        if kind == "forward":
            ranges.forward(STEP, index)
        else:
            results.append(ranges.backward(index))
    return results


def run_whole(config: JobConfig, mesh: Mesh) -> tuple[list[tuple[float, Any]], tuple[float, int]]:
    step = TrainingStep(config, mesh)
    weights = step.initial_weights()
    for index, entry in enumerate(step.layout.entries):
        step.load(index, weights[entry.offset : entry.stop])
    results = []
    for index in range(MICRO_BATCHES):
        out = np.full(step.layout.elements, np.nan, np.float32)
        results.append((run_micro_batch(step, STEP, index, out), out))
    return results, step.evaluate(0)


MakeConfig = Callable[..., JobConfig]


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    digest = hashlib.sha256(TEXT.encode()).hexdigest()

    def make(model: str, device: str = "one device", **changes: Any) -> JobConfig:
        return JobConfig(
            model=MODELS[model].model_copy(update=changes),
            device=DEVICES[device],
            data=DataConfig(files=(CorpusFile(path=str(path), sha256=digest),)),
            seed=7,
            batch_size=4,
            validation_batch_size=4,
            gradient_accumulation_steps=MICRO_BATCHES,
        )

    return make


def assert_same_bits(config: JobConfig, mesh: Mesh, lengths: tuple[int, ...], order: str) -> None:
    expected, evaluated = run_whole(config, mesh)
    ranges = Ranges(config, mesh, lengths)
    ranges.load()
    for index, ((loss, gradient), (whole_loss, whole)) in enumerate(
        zip(run_ranges(ranges, order), expected, strict=True)
    ):
        assert loss == whole_loss
        for entry in ranges.layout.entries:
            ours, theirs = (values[entry.offset : entry.stop] for values in (gradient, whole))
            assert ours.tobytes() == theirs.tobytes(), (index, entry.name)
    assert ranges.evaluate(0) == evaluated


CASES = {
    ("gpt2", "one device", "float32"),
    ("gpt2", "tp", "bfloat16"),
    ("gpt2 tied", "ddp", "float32"),
    ("gpt2 tied", "fsdp", "float32"),
    ("llama", "ddp", "float32"),
    ("llama tied", "fsdp x tp", "float32"),
}
"""Cases that `make test` runs; `make test-all` runs all combinations."""


@pytest.mark.parametrize(
    ("model", "device", "dtype"),
    [
        pytest.param(*case, marks=() if case in CASES else pytest.mark.long)
        for case in itertools.product(MODELS, DEVICES, ("float32", "bfloat16"))
    ],
)
def test_ranges_give_the_whole_model_s_bits(
    open_emulator: Callable[..., Mesh], make_config: MakeConfig, model: str, device: str, dtype: str
) -> None:
    config = make_config(model, device)
    mesh = open_emulator(config.device.mesh_shape, dtype, choose_axes(config.device))
    assert_same_bits(config, mesh, (2, 1), "two in flight")


@pytest.mark.long
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    model=st.sampled_from(sorted(MODELS)),
    device=st.sampled_from(["one device", "ddp", "tp"]),
    lengths=st.sampled_from(SPLITS),
    order=st.sampled_from(["one by one", "two in flight", "gpipe"]),
    memory_efficient=st.booleans(),
)
def test_any_split_in_any_order_gives_the_whole_model_s_bits(
    make_config: MakeConfig,
    model: str,
    device: str,
    lengths: tuple[int, ...],
    order: str,
    memory_efficient: bool,
) -> None:
    config = make_config(model, device, runner_type="memory_efficient" if memory_efficient else "default")
    with open_mesh(
        config.device.mesh_shape, backend="emulator", dtype="float32", axes=choose_axes(config.device)
    ) as mesh:
        assert_same_bits(config, mesh, lengths, order)


@pytest.mark.parametrize("model", MODELS)
def test_a_range_has_nothing_of_other_ranges(mesh: Mesh, make_config: MakeConfig, model: str) -> None:
    config = make_config(model)
    capture = capture_memory(mesh, every_buffer=True)
    ranges = Ranges(config, mesh, (1, 1, 1))
    assert capture.segment().allocated_bytes == 0, "building takes no memory of a chip"
    names = [[parameter.name for parameter in step.weights.parameters] for step in ranges.steps]
    assert [name for part in names for name in part] == [entry.name for entry in ranges.layout.entries]
    for index, part in enumerate(names):
        ends = {"token_embedding.weight", "position_embedding.weight"} if index == 0 else set()
        ends |= {"norm.weight", "norm.bias", "projection.weight"} if index == 2 else set()
        assert {name for name in part if not name.startswith(f"blocks.{index}.")} <= ends
    first, middle, last = (set(step.weights.loaded) for step in ranges.steps)
    assert not middle & (first | last)
    assert first & last == ({0} if config.model.weight_tying else set())


@pytest.mark.parametrize("ranges", [2, 4])
def test_a_range_takes_its_share_of_the_memory(mesh: Mesh, make_config: MakeConfig, ranges: int) -> None:
    """Its share: so many of the blocks' weights and kept activations, and what one pass needs for a moment."""
    config = make_config("gpt2", dropout_prob=0.0, num_blocks=8)
    (whole,) = measure_ranges(config, mesh, (8,))
    blocks = measure_ranges(config, mesh, (1,) * 8)
    working_bytes = max(each["peak"] - each["weights"] - each["kept"] for each in blocks)
    for part in measure_ranges(config, mesh, (8 // ranges,) * ranges):
        assert part["weights"] <= 1.1 * whole["weights"] / ranges
        assert part["peak"] <= 1.1 * (part["weights"] + whole["kept"] / ranges + working_bytes)


def measure_ranges(config: JobConfig, mesh: Mesh, lengths: tuple[int, ...]) -> list[dict[str, int]]:
    """Return bytes on the chip of each range: weights, what a forward pass keeps, and the peak of a micro-batch."""
    ranges = Ranges(config, mesh, lengths)
    measured, weights = [], []
    for step in ranges.steps:
        capture = capture_memory(mesh, every_buffer=True)
        initial = step.initial_weights()
        for index in step.weights.loaded:
            entry = ranges.layout.entries[index]
            start = entry.offset - step.weights.offset
            step.weights.load(index, initial[start : start + entry.size])
        weights.append(capture.segment().peak_bytes)
    for warm_up in (True, False):  # the first pass also puts constants on the mesh
        activation, passes = None, []
        measured.clear()
        for step, weight_bytes in zip(ranges.steps, weights, strict=True):
            capture = capture_memory(mesh, every_buffer=True)
            one, activation = step.forward(0, int(not warm_up), activation)
            forward = capture.segment()
            passes.append(one)
            kept = forward.allocated_bytes - forward.freed_bytes
            measured.append(
                {"weights": weight_bytes, "kept": kept, "peak": weight_bytes + forward.peak_bytes}
            )
        gradient = None
        for step, one, found in reversed(list(zip(ranges.steps, passes, measured, strict=True))):
            capture = capture_memory(mesh, every_buffer=True)
            out = np.empty(step.weights.elements, np.float32)
            gradient = step.backward(one, gradient, None, out, lambda offset: None).gradient
            found["peak"] = max(
                found["peak"], found["weights"] + found["kept"] + capture.segment().peak_bytes
            )
    for step in ranges.steps:
        step.weights.close()
    return measured


def test_what_does_not_fit_is_refused_with_its_place(mesh: Mesh, make_config: MakeConfig) -> None:
    config = make_config("gpt2 tied")
    ranges = Ranges(config, mesh, (1, 2))
    ranges.load()
    first, last = ranges.steps
    one, activation = first.forward(3, 2)
    assert activation is not None
    for wrong in (activation[:, :, 1:], activation.astype(np.float64), (activation.view(np.uint32) >> 16)):
        with pytest.raises(
            Refused, match=r"^activation of micro-batch 2 of step 3, for blocks 1 to 2: .* expected "
        ):
            last.forward(3, 2, wrong)
    with pytest.raises(
        Refused, match=r"^activation of micro-batch 2 of step 3, for blocks 1 to 2: none given"
    ):
        last.forward(3, 2)
    two, _ = last.forward(3, 2, activation)
    done = last.backward(two, None, None, np.empty(last.weights.elements, np.float32), lambda offset: None)
    out = np.empty(first.weights.elements, np.float32)
    with pytest.raises(Refused, match=r"^tied part of gradient of token_embedding\.weight in micro"):
        first.backward(one, done.gradient, None, out, lambda offset: None)
    with pytest.raises(Refused, match=r"^gradient of micro-batch 2 of step 3, for blocks 0 to 0: none given"):
        first.backward(one, None, done.tied, out, lambda offset: None)


def test_models_without_blocks_are_refused(mesh: Mesh) -> None:
    with pytest.raises(Refused, match="model_type: mlp has no blocks"):
        build_range(MLPConfig(), 0, mesh, BlockRange(0, 1, 2))


def test_a_trace_is_refused(mesh: Mesh, make_config: MakeConfig) -> None:
    config = make_config("gpt2")
    traced = config.model_copy(update={"device": DeviceConfig(mesh_shape=(1, 1), trace=True)})
    with pytest.raises(Refused, match=r"device_config\.trace"):
        Ranges(traced, mesh, (1, 2))
