"""The estimate of a stage's memory against what the emulator measures while a pipeline runs on submeshes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mesh.device import open_mesh
from mesh.memory import capture_memory
from services.config.job import JobConfig
from services.config.load import load_job_document
from services.pipeline.exchange import Compute, FinishedPass
from services.sizing.pipeline import size_stages
from training.parameter_placement import choose_axes
from training.pipeline.submeshes import find_pipeline_mesh_shape
from training.step import TrainingStep

MICRO_BATCHES = 4
SCHEDULES: dict[str, dict[str, Any]] = {
    "1f1b": {},
    "gpipe": {"schedule": "gpipe"},
    "interleaved": {"schedule": "interleaved_1f1b", "ranges_per_rank": 2},
}
MESHES: dict[str, dict[str, Any]] = {
    "one chip": {},
    "ddp": {"mesh_shape": [1, 2], "enable_ddp": True},
    "tp": {"mesh_shape": [1, 2], "enable_tp": True},
    "fsdp": {"mesh_shape": [1, 2], "enable_fsdp": True},
}
CASES = [
    ("gpt2", "1f1b", "one chip", "memory_efficient", 2, 2000),
    ("gpt2", "1f1b", "ddp", "default", 4, 2000),
    ("gpt2", "gpipe", "one chip", "memory_efficient", 2, 20_000),
    ("gpt2", "interleaved", "one chip", "default", 4, 20_000),
    ("llama", "1f1b", "fsdp", "memory_efficient", 4, 20_000),
    ("llama", "1f1b", "tp", "default", 2, 2000),
    ("llama", "gpipe", "tp", "memory_efficient", 4, 2000),
    ("llama", "interleaved", "one chip", "default", 2, 2000),
]


@pytest.mark.long
@pytest.mark.parametrize(("model", "schedule", "device", "runner", "stages", "vocabulary"), CASES)
def test_the_estimate_of_each_stage_is_within_a_twentieth_of_its_peak(
    model: str, schedule: str, device: str, runner: str, stages: int, vocabulary: int, tmp_path: Path
) -> None:
    config = make_job(model, SCHEDULES[schedule], MESHES[device], runner, stages, vocabulary, tmp_path)
    sizes = size_stages(config, config.vocabulary, dtype="bfloat16", banks=12, worker_stages=stages)
    assert [each.memory_bytes for each in sizes] == pytest.approx(measure_stages(config), rel=0.05)


def make_job(
    model: str,
    pipeline: dict[str, Any],
    device: dict[str, Any],
    runner: str,
    stages: int,
    vocabulary: int,
    folder: Path,
) -> JobConfig:
    """Return a model of 8 blocks, with tied tables unless layers are split, in some stages."""
    document = {
        "training_config": {
            "data_path": "builtin:python-reference",
            "batch_size": 2,
            "validation_batch_size": 2,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "vocabulary": "config",
        },
        "transformer_config": {
            "model_type": model,
            "num_heads": 4,
            "embedding_dim": 256,
            "num_blocks": 8,
            "max_sequence_length": 128,
            "dropout_prob": 0.0,
            "runner_type": runner,
            "vocab_size": vocabulary,
            "weight_tying": "disabled" if "enable_tp" in device else "enabled",
            **({"num_groups": 2} if model == "llama" else {}),
        },
        "device_config": {"backend": "emulator", "dtype": "bfloat16", **device},
        "multihost_config": {
            "enabled": True,
            "num_workers": stages,
            "pipeline_parallel_config": {"blocks_per_rank": "auto", **pipeline},
        },
    }
    return load_job_document(document, folder=folder)[0]


def measure_stages(config: JobConfig) -> list[int]:
    """Return the peak memory of a chip of each stage, in bytes, over a step and a held-out batch."""
    shape, axes = find_pipeline_mesh_shape(config), choose_axes(config.device)
    assert shape is not None and config.pipeline is not None
    with open_mesh(shape, backend="emulator", dtype="bfloat16", axes=axes) as mesh:
        stages = mesh.split(config.stages, axes)
        step = TrainingStep(config, dict(enumerate(stages)))
        captures = [capture_memory(each, every_buffer=True) for each in stages]
        weights = step.initial_weights()
        for index, entry in enumerate(step.layout.entries):
            step.load(index, weights[entry.offset : entry.stop])
        gradients = [np.empty(own.stop - own.start, np.float32) for own in step.ranges.values()]

        def drop(range_index: int, micro_batch: int, compute: Compute) -> FinishedPass:
            del micro_batch
            return compute(gradients[range_index], lambda offset: None)

        step.micro_batches(0, 0, MICRO_BATCHES, drop)
        step.evaluate(0)
        return [each.segment().peak_bytes for each in captures]
