"""Jobs that figures share: nanoGPT's CPU setting on Shakespeare's characters, and nanollama3."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.harness.report import Skipped
from mesh.device import Mesh, open_mesh
from services.config.job import JobConfig
from services.config.load import load_job
from services.config.models import GPT2Config, LlamaConfig
from training.parameter_placement import choose_axes

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "training_configs" / "nanogpt_shakespeare_char_cpu.yaml"
BUILD = ROOT / "build" / "bench"
CORPUS = "shakespeare.txt"


def data_dir() -> Path:
    """Return the folder that has the corpus.

    Raises:
        Skipped: no folder has it.
    """
    given = os.environ.get("TIERMESH_DATA")
    places = [Path(given)] if given else []
    places += [ROOT / "data", ROOT.parent / "shared" / "data"]
    for place in places:
        if (place / CORPUS).is_file():
            return place.resolve()
    raise Skipped(f"no {CORPUS}: put it into data/, or set TIERMESH_DATA to its folder")


def load_setting(*overrides: str) -> JobConfig:
    """Return the job of nanoGPT's setting."""
    os.environ["TIERMESH_DATA"] = str(data_dir())
    return load_job(CONFIG, overrides)[0]


def load_nanollama(*overrides: str) -> JobConfig:
    """Return the job of nanollama3 with a vocabulary of 32,000 (the corpus uses few of it) and 4 x 256 tokens."""
    config = load_setting(
        "model_config=model_configs/nanollama3.yaml", "batch_size=4", "validation_batch_size=4", *overrides
    )
    return config.model_copy(update={"model": config.model.model_copy(update={"vocab_size": 32_000})})


def language_model(config: JobConfig) -> GPT2Config:
    """Return the job's model."""
    assert isinstance(config.model, GPT2Config)
    return config.model


def mesh_of(config: JobConfig) -> Mesh:
    """Open the job's mesh. The caller closes it."""
    device = config.device
    return open_mesh(
        device.mesh_shape,
        backend="emulator",
        dtype=device.dtype,
        axes=choose_axes(device),
        threads=device.threads,
    )


def peer_model(config: JobConfig, vocabulary: int) -> dict[str, Any]:
    """Return the model's sizes in the form that peers read."""
    if isinstance(config.model, LlamaConfig):
        llama = config.model
        return {
            "vocabulary": vocabulary,
            "tokens": llama.max_sequence_length,
            "width": llama.embedding_dim,
            "heads": llama.num_heads,
            "groups": llama.num_groups,
            "hidden": llama.feed_forward_width,
            "blocks": llama.num_blocks,
            "theta": llama.theta,
            "tied": llama.weight_tying,
        }
    model = language_model(config)
    return {
        "vocabulary": vocabulary,
        "tokens": model.max_sequence_length,
        "width": model.embedding_dim,
        "heads": model.num_heads,
        "blocks": model.num_blocks,
        "bias": model.bias,
        "tied": model.weight_tying,
    }
