"""Checkpoints: folders that hold a job at one step, complete or absent, and that Hugging Face's tools can load."""

from __future__ import annotations

from services.checkpoints.format import CONSTANTS_FILE, Checkpoint, CheckpointInfo, check_file_names
from services.checkpoints.prune import set_aside, surplus
from services.checkpoints.read import (
    list_checkpoints,
    newest_checkpoint,
    newest_that,
    read_checkpoint,
    verify_checkpoint,
)
from services.checkpoints.write import Fence, synchronise, write_checkpoint

__all__ = [
    "CONSTANTS_FILE",
    "Checkpoint",
    "CheckpointInfo",
    "Fence",
    "check_file_names",
    "list_checkpoints",
    "newest_checkpoint",
    "newest_that",
    "read_checkpoint",
    "set_aside",
    "surplus",
    "synchronise",
    "verify_checkpoint",
    "write_checkpoint",
]
