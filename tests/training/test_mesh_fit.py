"""A job whose config is accepted can be built and trained by a worker: both check the same rules."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mesh.device import open_mesh
from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import GPT2Config, LlamaConfig, MLPConfig
from tests.support.micro_batch import run_micro_batch
from training.parameter_placement import choose_axes
from training.step import TrainingStep

TEXT = "".join(f"{number} and {number + 1}.\n" for number in range(60))
CORPUS = Path(tempfile.mkdtemp(prefix="tiermesh-fit-")) / "corpus.txt"
CORPUS.write_text(TEXT)
DATA = DataConfig(files=(CorpusFile(path=str(CORPUS), sha256=hashlib.sha256(TEXT.encode()).hexdigest()),))

HEADS = st.sampled_from([1, 2, 3, 4, 6])
RUNNERS = st.sampled_from(["default", "memory_efficient"])


@st.composite
def gpt2s(draw: st.DrawFn) -> GPT2Config:
    heads = draw(HEADS)
    return GPT2Config(
        num_heads=heads,
        embedding_dim=heads * draw(st.sampled_from([5, 16, 32, 48, 64])),
        num_blocks=1,
        max_sequence_length=32,
        weight_tying=draw(st.booleans()),
        positional_embedding_type=draw(st.sampled_from(["trainable", "fixed"])),
        bias=draw(st.booleans()),
        runner_type=draw(RUNNERS),
    )


@st.composite
def llamas(draw: st.DrawFn) -> LlamaConfig:
    heads = draw(HEADS)
    return LlamaConfig(
        num_heads=heads,
        num_groups=draw(st.sampled_from([groups for groups in range(1, heads + 1) if heads % groups == 0])),
        embedding_dim=heads * draw(st.sampled_from([32, 64, 96])),
        intermediate_dim=draw(st.sampled_from([50, 64, 128, 192])),
        num_blocks=1,
        max_sequence_length=32,
        weight_tying=draw(st.booleans()),
        runner_type=draw(RUNNERS),
    )


@st.composite
def mlps(draw: st.DrawFn) -> MLPConfig:
    return MLPConfig(
        input_features=draw(st.integers(1, 70)),
        hidden_features=tuple(draw(st.lists(st.sampled_from([1, 7, 32, 64, 128]), max_size=4))),
        output_features=draw(st.integers(1, 40)),
        activation=draw(st.sampled_from(["relu", "gelu", "gelu_tanh", "silu"])),
        training_samples=200,
    )


@st.composite
def devices(draw: st.DrawFn) -> DeviceConfig:
    shape = draw(st.sampled_from([(1, 1), (1, 2), (4, 1), (2, 2), (2, 4)]))
    remaining = [length for length in shape if length > 1]
    data = draw(st.sampled_from(["enable_ddp", "enable_fsdp"]))
    flags = {0: [], 1: draw(st.sampled_from([[data], ["enable_tp"]])), 2: [data, "enable_tp"]}[len(remaining)]
    order: Any = draw(st.permutations(["data", "tensor"]))
    return DeviceConfig(mesh_shape=shape, axis_order=tuple(order), **dict.fromkeys(flags, True))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(gpt2s() | llamas() | mlps(), devices(), st.integers(1, 8))
def test_a_job_that_is_accepted_trains(
    model: GPT2Config | LlamaConfig | MLPConfig, device: DeviceConfig, batch_size: int
) -> None:
    data = None if isinstance(model, MLPConfig) else DATA
    try:
        job = JobConfig(
            model=model, device=device, batch_size=batch_size, validation_batch_size=batch_size, data=data
        )
    except ValidationError:
        assume(False)
    with open_mesh(device.mesh_shape, backend="emulator", axes=choose_axes(device)) as mesh:
        step = TrainingStep(job, mesh)
        weights = step.initial_weights()
        for index, entry in enumerate(step.layout.entries):
            step.load(index, weights[entry.offset : entry.stop])
        gradient = np.empty(step.layout.elements, np.float32)
        assert np.isfinite(run_micro_batch(step, 0, 0, gradient))
        assert np.isfinite(gradient).all()
        step.close()
