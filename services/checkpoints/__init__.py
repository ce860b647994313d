"""Checkpoints: folders with the state of a job at one step, complete or absent, that Hugging Face's tools can load.

May import services' tensors, instrumentation and errors. Read `format` first, then `write`, `read` and `prune`.
`export` converts between the layout and `model.safetensors`, which `safetensors_file` writes. `hugging_face` opens
folders that other tools wrote.
"""

from __future__ import annotations

from services.checkpoints.format import CONSTANTS_FILE, Checkpoint, CheckpointInfo, check_file_names
from services.checkpoints.prune import list_surplus, mark_removed
from services.checkpoints.read import (
    find_newest,
    list_checkpoints,
    read_checkpoint,
    read_newest_checkpoint,
    verify_checkpoint,
)
from services.checkpoints.write import Fence, sync_folder, write_checkpoint

__all__ = [
    "CONSTANTS_FILE",
    "Checkpoint",
    "CheckpointInfo",
    "Fence",
    "check_file_names",
    "find_newest",
    "list_checkpoints",
    "list_surplus",
    "mark_removed",
    "read_checkpoint",
    "read_newest_checkpoint",
    "sync_folder",
    "verify_checkpoint",
    "write_checkpoint",
]
