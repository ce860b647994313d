"""Runs the worker's own training step, or text generation, on any device module."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from mesh.device import Mesh, open_mesh
from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import (
    CustomConfig,
    GPT2Config,
    LinearRegressionConfig,
    LlamaConfig,
    MLPConfig,
    ModelConfig,
    RopeScaling,
)
from tests.support.micro_batch import run_micro_batch
from training.generation.decoding import Decoder
from training.models.build import (
    build_model,
    load_parameter,
)
from training.models.initialise import (
    draw_initial_value,
)
from training.models.model import TextModel
from training.parameter_placement import choose_axes
from training.step import TrainingStep

_GPT2 = GPT2Config(
    num_heads=8,
    embedding_dim=256,
    num_blocks=1,
    max_sequence_length=64,
    dropout_prob=0.1,
    weight_tying=False,
    positional_embedding_type="trainable",
    bias=True,
    activation="gelu",
)
_LLAMA = LlamaConfig(
    num_heads=16,
    num_groups=8,
    embedding_dim=512,
    intermediate_dim=512,
    num_blocks=1,
    max_sequence_length=32,
    dropout_prob=0.1,
    rope_scaling=RopeScaling(scaling_factor=8.0, original_context_length=16),
    weight_tying=False,
)

MODELS: dict[str, ModelConfig] = {
    # Heads of whole tiles, and every part of GPT-2: trained positions, biases, dropout, exact gelu, untied head.
    "gpt2": _GPT2,
    "gpt2_recomputed": _GPT2.model_copy(update={"num_blocks": 2, "runner_type": "memory_efficient"}),
    # Heads of half a tile, and the other value of every option.
    "gpt2_bare": GPT2Config(
        num_heads=16,
        embedding_dim=256,
        num_blocks=1,
        max_sequence_length=32,
        dropout_prob=0.0,
        weight_tying=True,
        positional_embedding_type="fixed",
        bias=False,
        activation="gelu_tanh",
    ),
    # Grouped keys and values, scaled positions. `llama_bare` has the other value of every option, and a hidden width
    # that is padded on each device, as `mlp` has.
    "llama": _LLAMA,
    "llama_recomputed": _LLAMA.model_copy(update={"runner_type": "memory_efficient"}),
    "llama_bare": LlamaConfig(
        num_heads=8,
        num_groups=8,
        embedding_dim=256,
        intermediate_dim=500,
        num_blocks=1,
        max_sequence_length=32,
        dropout_prob=0.0,
        weight_tying=True,
    ),
    # The worked example of docs/use/own-model.md: a user's own model with an op of its own.
    "own_model": CustomConfig(
        model_type="mixer:Mixer", max_sequence_length=32, options={"width": 256, "layers": 1}
    ),
    "mlp": MLPConfig(input_features=64, hidden_features=(232, 256), output_features=32, training_samples=200),
    "linear_regression": LinearRegressionConfig(num_features=64, num_targets=32, training_samples=200),
}

TEXT_MODELS = ("gpt2", "gpt2_bare", "llama", "llama_bare")
"""Models that generate text."""

STRATEGIES: dict[str, dict[str, bool]] = {
    "single": {},
    "ddp": {"enable_ddp": True},
    "tp": {"enable_tp": True},
    "fsdp": {"enable_fsdp": True},
    "ddp_tp": {"enable_ddp": True, "enable_tp": True},
    "fsdp_tp": {"enable_fsdp": True, "enable_tp": True},
}
"""Keys of a job's device configuration, by strategy."""

_DOCS = Path(__file__).resolve().parents[3] / "docs"
_TEXT = "".join(f"{number} times {number} is {number * number}.\n" for number in range(300))


def make_job(model: str, device: DeviceConfig, folder: Path) -> JobConfig:
    """Return a job of `model`. The corpus, if the model needs one, is written to `folder`."""
    data = None
    if not isinstance(MODELS[model], (LinearRegressionConfig, MLPConfig)):
        path = folder / "text.txt"
        path.write_text(_TEXT)
        data = DataConfig(
            files=(CorpusFile(path=str(path), sha256=hashlib.sha256(_TEXT.encode()).hexdigest()),)
        )
    return JobConfig(
        seed=7, batch_size=16, validation_batch_size=16, model=MODELS[model], data=data, device=device
    )


def device_config(strategy: str, mesh_shape: tuple[int, int]) -> DeviceConfig:
    """Return the device configuration of a strategy on a mesh. Raises ValueError if they don't fit."""
    return DeviceConfig.model_validate({"mesh_shape": mesh_shape, **STRATEGIES[strategy]})


@contextmanager
def open_configured_mesh(module: Any, device: DeviceConfig, dtype: str = "bfloat16") -> Iterator[Mesh]:
    """Open a mesh as `device` configures it, on a device module."""
    with open_mesh(device.mesh_shape, module=module, dtype=dtype, axes=choose_axes(device)) as mesh:
        yield mesh


@cache
def _load_own_models() -> tuple[str, ...]:
    """Load the worked examples of the docs as modules; return the names that a job may import.

    A worker imports a user's model by name, so the modules are registered in `sys.modules` like installed ones.
    """
    for name, page in (("mixing", "internals/ops.md"), ("mixer", "use/own-model.md")):
        source, *_ = re.findall(
            r"^```python\n(.*?)^```$", (_DOCS / page).read_text(), re.DOTALL | re.MULTILINE
        )
        spec = importlib.util.spec_from_loader(name, loader=None)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        exec(compile(source, str(_DOCS / page), "exec"), module.__dict__)
    return ("mixer",)


def run_step(
    model: str, device: DeviceConfig, mesh: Mesh, folder: Path
) -> tuple[float, np.ndarray[Any, Any]]:
    """Load weights, run one micro-batch, load weights again, run one validation batch.

    Returns:
        Loss and gradient of the micro-batch.
    """
    step = TrainingStep(make_job(model, device, folder), mesh, allowed_models=_load_own_models())
    weights = step.initial_weights()
    entries = list(enumerate(step.layout.entries))
    for index, entry in entries:
        step.load(index, weights[entry.offset : entry.stop])
    gradient = np.full(step.layout.elements, np.nan, np.float32)
    loss = run_micro_batch(step, 0, 0, gradient)
    for index, entry in entries:
        step.load(index, weights[entry.offset : entry.stop])
    step.evaluate(0)
    step.close()
    return loss, gradient


def run_generation(model: str, mesh: Mesh) -> np.ndarray[Any, Any]:
    """Return next-token logits [5, vocabulary] of a text that grows until it exceeds the window."""
    vocabulary, window = 40, 32
    built = cast(TextModel, build_model(MODELS[model], vocabulary, mesh))
    for parameter in built.parameters():
        load_parameter(mesh, parameter, draw_initial_value(parameter, 7))
    decoder = Decoder(mesh, built, window)
    text = [token % vocabulary for token in range(window + 2)]
    return np.stack([decoder.logits(text[:length]) for length in range(window - 2, window + 3)])
