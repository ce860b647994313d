"""Format of a checkpoint's folder, and the records that describe it.

step-00000500/
    model.safetensors      the weights, float32, by Hugging Face's names and shapes
    optimizer.safetensors  state of the update rule: flat arrays in the order of the layout, and counters
    state.json             job, generation, step, job config, layout, size and sha256 of every other file
    config.json, tokenizer.json, ...   files from the worker that initialised the job
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
from pydantic import BaseModel, ConfigDict, Field

from protos.files_pb2 import FileRef
from services.errors import Refused
from services.input_files import read_input_file
from services.json_text import CHECKPOINT_STATE, LAYOUT, parse_json
from services.protocol.file_refs import MAX_TEXT_BYTES
from services.protocol.versions import LAST_GENERATION
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout

FORMAT_VERSION = 1
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
CONSTANTS_FILE = "constants.safetensors"
"""Optional file from the worker with tensors that Hugging Face's model has and ours has not.

They are added to `model.safetensors`. Examples are the zero biases of a GPT-2 without biases, and fixed positions.
"""

MAX_WORKER_FILES_BYTES = 2 * MAX_TEXT_BYTES
"""Maximum size of all files that a worker gives a checkpoint: a tokenizer and untrained tensors."""

LAST_STEP = 2**31 - 1
"""Largest step: a job's config has no larger one."""

_FOLDER_NAME = re.compile(r"step-([0-9]{8,10})")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
_OWN_FILES = (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE)


@dataclass(frozen=True)
class CheckpointInfo:
    """Checkpoint that has been written.

    Attributes:
        path: folder of the checkpoint.
        model_sha256: SHA-256 of its `model.safetensors`, in hexadecimal.
    """

    path: Path
    model_sha256: str


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint that has been read and verified.

    Attributes:
        path: folder of the checkpoint.
        job: id of the job.
        generation: generation of the job in which it was written.
        step: number of updates that the weights have had.
        config_json: config of the whole job, canonical JSON.
        layout: layout of the weights.
        weights: the weights, [elements] float32.
        optimizer_state: arrays of the update rule's state, by name; empty if they were not read.
        files: contents of the worker's files, by name.
        model_sha256: SHA-256 of `model.safetensors`, in hexadecimal.
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
    """Size and SHA-256 of a checkpoint's file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    bytes: int
    sha256: str


class State(BaseModel):
    """Content of `state.json`, except its own checksum."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: int
    job: str
    generation: int = Field(ge=0, le=LAST_GENERATION)
    step: int = Field(ge=0, le=LAST_STEP)
    config: dict[str, Any]
    layout: list[dict[str, Any]]
    files: dict[str, FileRecord]

    def dump(self) -> bytes:
        """Return the bytes of `state.json`, which include a checksum of everything else in it."""
        values = self.model_dump(mode="json")
        return (json.dumps({**values, "sha256": _checksum(values)}, indent=2) + "\n").encode()

    @classmethod
    def read(cls, path: Path) -> State:
        """Return the content of a `state.json`.

        Raises:
            NoSuchFile: nothing is there.
            Refused: it can't be read, is no regular file, or is larger than 64 MiB.
            ValueError: its bytes are not what `dump` writes; says what is wrong.
        """
        return cls.load(read_input_file("", path, CHECKPOINT_STATE.limit_bytes))

    @classmethod
    def load(cls, data: bytes) -> State:
        """Parse the bytes of `state.json`.

        Raises:
            ValueError: the bytes are not what `dump` writes; says what is wrong.
        """
        values = parse_json(data, CHECKPOINT_STATE)
        if not isinstance(values, dict):
            raise ValueError("expected a JSON object")
        if values.get("format") != FORMAT_VERSION:
            raise ValueError(f"format {values.get('format')}, expected {FORMAT_VERSION}")
        if values.pop("sha256", None) != _checksum(values):
            raise ValueError("sha256 is not that of the content")
        return cls.model_validate(values)


def folder_name(step: int) -> str:
    """Return the name of the folder of a step's checkpoint."""
    return f"step-{step:08d}"


def step_of_folder(name: str) -> int | None:
    """Return the step in the name of a checkpoint's folder; None for a name that `folder_name` gives to no step."""
    match = _FOLDER_NAME.fullmatch(name)
    step = int(match[1]) if match else LAST_STEP + 1
    return step if step <= LAST_STEP and folder_name(step) == name else None


def check_file_names(names: Iterable[str]) -> None:
    """Check names of a worker's files, which come from the network, so that no file lands outside the folder.

    Raises:
        Refused: a name has a separator, starts with a dot, or is that of a file which checkpoints write themselves.
    """
    for name in names:
        if not _PLAIN_NAME.fullmatch(name) or name in _OWN_FILES:
            raise Refused(
                f"checkpoint file {name!r}: expected a name of letters, digits, '.', '_' and '-'"
                f" other than {', '.join(_OWN_FILES)}"
            )


def check_description(layout: FileRef, files: Mapping[str, FileRef]) -> None:
    """Check what a worker says of its model: the optimizer reads all these files into memory.

    Args:
        layout: the layout's file.
        files: files for every checkpoint, by name.

    Raises:
        Refused: a name is wrong, or the files are too large.
    """
    check_file_names(files)
    if layout.size > LAYOUT.limit_bytes:
        raise Refused(
            f"layout of the initial weights: {layout.size} bytes, expected at most {LAYOUT.limit_bytes}; give the "
            "model fewer parameters, or shorter names"
        )
    total = sum(ref.size for ref in files.values())
    if total > MAX_WORKER_FILES_BYTES:
        raise Refused(
            f"files for checkpoints: {total} bytes, expected at most {MAX_WORKER_FILES_BYTES}; make the tokenizer or "
            "the untrained tensors smaller"
        )


def canonical_json(value: Any) -> str:
    """Return JSON text without spaces and with sorted keys, so that equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _checksum(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()
