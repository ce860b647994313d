"""Checkpoints: folders that hold a job at one step, complete or absent, and that Hugging Face's tools can load."""

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
