"""What a checkpoint's folder holds, and the records that describe it.

step-00000500/
    model.safetensors      the weights, float32, by Hugging Face's names and shapes
    optimizer.safetensors  the update rule's state: flat arrays in the order of the layout, and counters
    state.json             job, generation, step, job config, layout, size and sha256 of every other file
    config.json, tokenizer.json, ...   as the worker that initialised the job gave them
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from services.errors import Refused
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout

FORMAT_VERSION = 1
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
CONSTANTS_FILE = "constants.safetensors"
"""A file that a worker may give: tensors that `model.safetensors` holds beside the weights, because Hugging Face's
model has them and ours has not (the zero biases of a GPT-2 without biases, fixed positions)."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
_OWN_FILES = (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE)


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint that has been written.

    Attributes:
        path: its folder.
        model_sha256: of its `model.safetensors`.
    """

    path: Path
    model_sha256: str


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been read and verified.

    Attributes:
        path: its folder.
        job: id of the job.
        generation: in which it was written.
        step: updates that made the weights.
        config_json: the complete job, canonical JSON.
        layout: of the weights.
        weights: [elements] float32.
        optimizer_state: of the update rule, by name; empty if it was not asked for.
        files: the worker's files, by name.
        model_sha256: of `model.safetensors`.
    """

    path: Path
    job: str
    generation: int
    step: int
    config_json: str
    layout: Layout
    weights: Float32Array
    optimizer_state: Mapping[str, NDArray[np.generic]]
    files: Mapping[str, bytes]
    model_sha256: str


class FileRecord(BaseModel):
    """Size and checksum of a file of a checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    bytes: int
    sha256: str


class State(BaseModel):
    """What `state.json` says, but for the checksum over itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: int
    job: str
    generation: int
    step: int
    config: dict[str, Any]
    layout: list[dict[str, Any]]
    files: dict[str, FileRecord]

    def dump(self) -> bytes:
        """The bytes of `state.json`, with the checksum over everything else in it."""
        values = self.model_dump(mode="json")
        return (json.dumps({**values, "sha256": _checksum(values)}, indent=2) + "\n").encode()

    @classmethod
    def load(cls, data: bytes) -> State:
        """From what `dump` gave (ValueError for anything else, saying what is wrong)."""
        try:
            values = json.loads(data)
        except RecursionError:
            raise ValueError("nested too deep") from None
        if not isinstance(values, dict):
            raise ValueError("it holds no JSON object")
        if values.get("format") != FORMAT_VERSION:
            raise ValueError(f"format {values.get('format')}, this release reads {FORMAT_VERSION}")
        if values.pop("sha256", None) != _checksum(values):
            raise ValueError("its sha256 is not that of its content")
        return cls.model_validate(values)


def check_file_names(names: Iterable[str]) -> None:
    """Hold names that came over the network to be those of a worker's files, inside the checkpoint's folder.

    Raises:
        Refused: a name has a separator, starts with a dot, or is one that checkpoints use themselves.
    """
    for name in names:
        if not _PLAIN_NAME.fullmatch(name) or name in _OWN_FILES:
            raise Refused(
                f"checkpoint file {name!r}: expected a name of letters, digits, '.', '_' and '-'"
                f" other than {', '.join(_OWN_FILES)}"
            )


def canonical_json(value: Any) -> str:
    """JSON without spaces, keys sorted: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _checksum(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()
