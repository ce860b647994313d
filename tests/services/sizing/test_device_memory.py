"""The estimate of a chip's memory against what the emulator measures, which counts what ttnn allocates."""

from __future__ import annotations

from pathlib import Path

import pytest

import mesh.emulator as emulator
from mesh.emulator.memory import count_bank_bytes
from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.job_parts import DataConfig
from services.config.models import CustomConfig, GPT2Config, LlamaConfig
from services.sizing.allocation import Allocator
from services.sizing.device_memory import DeviceMemory, estimate_device_memory
from tests.support.contract.cells import CELLS, GENERATE
from tests.support.contract.peak_memory import measure_cell

QUICK = (
    ("gpt2-ddp-1x2", "bfloat16"),
    ("gpt2_bare-single-1x1", "float32"),
    ("gpt2_bare-tp-1x2", "bfloat16"),
    ("llama_bare-fsdp-1x2", "bfloat16"),
    ("llama-ddp_tp-2x4", "bfloat16"),
    ("llama-fsdp_tp-2x4", "float32"),
    ("mlp-ddp-1x2", "bfloat16"),
    ("linear_regression-single-1x1", "bfloat16"),
)
"""Cells, and dtypes, that `make test` measures."""
ALL = [
    (name, dtype)
    for name, cell in CELLS.items()
    for dtype in ("bfloat16", "float32")
    if cell.strategy != GENERATE and cell.model != "own_model"
]
DATA = DataConfig.model_validate({"files": ({"path": "builtin:python-reference", "sha256": "0" * 64},)})
SMALL = GPT2Config(num_heads=8, embedding_dim=256, dropout_prob=0.0)
LLAMA_405B = LlamaConfig(
    num_heads=128,
    num_groups=8,
    embedding_dim=16384,
    intermediate_dim=53248,
    num_blocks=126,
    max_sequence_length=8192,
    dropout_prob=0.0,
    runner_type="memory_efficient",
)


@pytest.mark.parametrize(
    ("cell", "dtype"), [pytest.param(*each, marks=() if each in QUICK else pytest.mark.long) for each in ALL]
)
def test_the_estimate_is_within_a_tenth_of_the_peak(cell: str, dtype: str, tmp_path: Path) -> None:
    job, vocabulary, peak_bytes = measure_cell(CELLS[cell], emulator, dtype, tmp_path)
    estimate = estimate_device_memory(job, vocabulary, dtype=dtype, banks=12)
    assert estimate is not None
    assert estimate.total_bytes == pytest.approx(peak_bytes, rel=0.1)


@pytest.mark.parametrize("shape", [(1,), (32, 32), (33, 65), (2, 1, 33, 97), (13, 3), (1, 1, 1024, 1000)])
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_tensors_have_the_emulator_s_sizes(shape: tuple[int, ...], element_bytes: int) -> None:
    chip = Allocator(banks=12)
    assert chip.tiled_bytes(shape, element_bytes) == 12 * count_bank_bytes(shape, element_bytes, True)
    assert chip.row_major_bytes(shape, element_bytes) == 12 * count_bank_bytes(shape, element_bytes, False)


def estimate(model: GPT2Config | LlamaConfig, vocabulary: int, **settings: object) -> DeviceMemory:
    small = JobConfig.model_validate({"model": SMALL, "data": DATA, **settings})
    config = small.model_copy(update={"model": model})  # a job may be too large for one cluster
    found = estimate_device_memory(config, vocabulary, dtype="bfloat16", banks=12)
    assert found is not None
    return found


def test_llama_405b_is_a_matter_of_numbers() -> None:
    device = DeviceConfig(mesh_shape=(8, 4), enable_tp=True, enable_fsdp=True, axis_order=("tensor", "data"))
    found = estimate(LLAMA_405B, 128256, device=device, batch_size=8, validation_batch_size=8)
    assert found.weights_bytes == pytest.approx(405_853_388_800 * 2 / 32, rel=0.02)
    assert found.total_bytes > found.weights_bytes + found.activations_bytes


def test_parallelism_and_recomputing_take_less() -> None:
    model = LLAMA_405B.model_copy(update={"num_blocks": 8, "runner_type": "default"})
    alone = estimate(model, 1000, batch_size=8, validation_batch_size=8)
    assert (
        estimate(
            model.model_copy(update={"runner_type": "memory_efficient"}),
            1000,
            batch_size=8,
            validation_batch_size=8,
        ).activations_bytes
        < alone.activations_bytes / 2
    )
    for flags in ({"enable_ddp": True}, {"enable_fsdp": True}, {"enable_tp": True}):
        device = DeviceConfig.model_validate({"mesh_shape": (1, 8), **flags})
        shared = estimate(model, 1000, device=device, batch_size=8, validation_batch_size=8)
        assert shared.total_bytes < alone.total_bytes
        whole = "enable_ddp" in flags
        assert (shared.weights_bytes == alone.weights_bytes) == whole


def test_traces_keep_gradients_and_a_region() -> None:
    model = GPT2Config(dropout_prob=0.0)
    plain, traced = (
        estimate(model, 100, device=DeviceConfig(trace=trace), batch_size=1, validation_batch_size=1)
        for trace in (False, True)
    )
    assert traced.caches_bytes > plain.caches_bytes + (100 << 20)


def test_a_model_of_the_user_s_own_has_no_estimate() -> None:
    config = JobConfig(model=CustomConfig(model_type="mixer:Mixer"), data=DATA)
    assert estimate_device_memory(config, 100, dtype="bfloat16", banks=12) is None
