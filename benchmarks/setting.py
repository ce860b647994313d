"""The setting that all figures share: nanoGPT's for a CPU, on Shakespeare's characters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.report import Skipped
from mesh.device import Mesh, open_mesh
from services.config import GPT2Config, JobConfig, load_job
from worker.parallel import axes_of

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "training_configs" / "nanogpt_shakespeare_char_cpu.yaml"
BUILD = ROOT / "build" / "bench"
CORPUS = "shakespeare.txt"


def data_dir() -> Path:
    """The folder that has the corpus.

    Raises:
        Skipped: it is in none of the places.
    """
    given = os.environ.get("TIERMESH_DATA")
    places = [Path(given)] if given else []
    places += [ROOT / "data", ROOT.parent / "shared" / "data"]
    for place in places:
        if (place / CORPUS).is_file():
            return place.resolve()
    raise Skipped(f"no {CORPUS}: put it into data/, or name its folder by TIERMESH_DATA")


def load_setting(*overrides: str) -> JobConfig:
    """The setting's job."""
    os.environ["TIERMESH_DATA"] = str(data_dir())
    return load_job(CONFIG, overrides)[0]


def language_model(config: JobConfig) -> GPT2Config:
    """The job's model."""
    assert isinstance(config.model, GPT2Config)
    return config.model


def mesh_of(config: JobConfig) -> Mesh:
    """The job's mesh, opened; to be closed by the caller."""
    device = config.device
    return open_mesh(
        device.mesh_shape,
        backend="emulator",
        dtype=device.dtype,
        axes=axes_of(device),
    )


def peer_model(config: JobConfig, vocabulary: int) -> dict[str, Any]:
    """The model's sizes as the peer is told them."""
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
