"""Text drawn by the worker's own decoder, on whatever device module: first tokens, further ones, past the window."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from mesh.device import open_mesh
from services.config.models import GPT2Config, LlamaConfig
from training.generation.decoding import Decoder
from training.models import TextModel, build_model, initial_value, load_parameter

WINDOW = 64
_SIZES: dict[str, Any] = {"num_blocks": 1, "max_sequence_length": WINDOW}

MODELS: dict[str, GPT2Config | LlamaConfig] = {
    "gpt2": GPT2Config(num_heads=2, embedding_dim=64, **_SIZES),
    # Heads that fill no tile.
    "gpt2_bare": GPT2Config(
        num_heads=4, embedding_dim=64, positional_embedding_type="fixed", bias=False, **_SIZES
    ),
    "llama": LlamaConfig(num_heads=4, num_groups=2, embedding_dim=256, intermediate_dim=64, **_SIZES),
    # Heads that the library's rotation hasn't.
    "llama_wide_heads": LlamaConfig(num_heads=3, num_groups=1, embedding_dim=288, **_SIZES),
}


def decode(model: str, module: Any, dtype: str = "bfloat16") -> None:
    """Draw tokens until the caches were made anew and hold a further token."""
    with open_mesh((1, 1), module=module, dtype=dtype) as mesh:
        built = build_model(MODELS[model], 75, mesh)
        for parameter in built.parameters():
            load_parameter(mesh, parameter, initial_value(parameter, 1))
        decoder = Decoder(mesh, cast(TextModel, built), WINDOW)
        ids = list(range(WINDOW - 3))
        for _ in range(6):
            ids.append(int(np.argmax(decoder.logits(ids))))
