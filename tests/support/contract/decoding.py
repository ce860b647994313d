"""Generates text with the worker's own decoder on any device module, to beyond the window of its caches."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from mesh.device import open_mesh
from services.config.models import GPT2Config, LlamaConfig
from training.generation.decoding import Decoder
from training.models.build import (
    build_model,
    load_parameter,
)
from training.models.initialise import (
    draw_initial_value,
)
from training.models.model import (
    TextModel,
)

WINDOW = 64
_SIZES: dict[str, Any] = {"num_blocks": 1, "max_sequence_length": WINDOW}

MODELS: dict[str, GPT2Config | LlamaConfig] = {
    "gpt2": GPT2Config(num_heads=2, embedding_dim=64, **_SIZES),
    # Heads of 16 elements, half a tile.
    "gpt2_bare": GPT2Config(
        num_heads=4, embedding_dim=64, positional_embedding_type="fixed", bias=False, **_SIZES
    ),
    "llama": LlamaConfig(num_heads=4, num_groups=2, embedding_dim=256, intermediate_dim=64, **_SIZES),
    # Heads of 96 elements, which ttnn's rotary embedding refuses.
    "llama_wide_heads": LlamaConfig(num_heads=3, num_groups=1, embedding_dim=288, **_SIZES),
}


def decode(model: str, module: Any, dtype: str = "bfloat16") -> None:
    """Generate tokens until the caches have been refilled and updated once more."""
    with open_mesh((1, 1), module=module, dtype=dtype) as mesh:
        built = build_model(MODELS[model], 75, mesh)
        for parameter in built.parameters():
            load_parameter(mesh, parameter, draw_initial_value(parameter, 1))
        decoder = Decoder(mesh, cast(TextModel, built), WINDOW)
        ids = list(range(WINDOW - 3))
        for _ in range(6):
            ids.append(int(np.argmax(decoder.logits(ids))))
