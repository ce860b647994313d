"""The files of a checkpoint that describe a model, besides its weights."""

from __future__ import annotations

import json

from safetensors.numpy import save

from services.checkpoints.format import CONSTANTS_FILE
from training.data.tokenizer import Tokenizer
from training.models.model import Model


def describe_model(model: Model, tokenizer: Tokenizer | None) -> dict[str, bytes]:
    """Return the files that describe a model, by name.

    They are `config.json`, `tokenizer.json` for a model with a tokenizer, and `constants.safetensors` if other programs
    expect untrained tensors.
    """
    files = {"config.json": (json.dumps(model.hugging_face_config(), indent=2) + "\n").encode()}
    constants = model.constant_exports()
    if tokenizer is not None:
        files["tokenizer.json"] = tokenizer.to_json().encode()
    if constants:
        files[CONSTANTS_FILE] = save(constants, metadata={"format": "pt"})
    return files
