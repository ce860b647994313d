"""The first checkpoint of a job that starts from another job's: same weights, without a copy of their files.

A checkpoint's files never change, so the new folder has further names of them (hard links). Either job may lose its
checkpoint later without harm to the other.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.checkpoints.format import MODEL_FILE, OPTIMIZER_FILE, FileRecord, State, check_file_names
from services.checkpoints.safetensors_file import pieces
from services.checkpoints.write import Fence, write_file, write_folder


def write_start(
    root: Path,
    source: Path,
    source_state: State,
    *,
    job: str,
    step: int,
    config_json: str,
    optimizer_state: Mapping[str, NDArray[np.generic]] | None,
    fence: Fence,
) -> Path:
    """Make a job's first checkpoint from another job's, and return its folder once it would survive a power cut.

    The files are not verified here, but by the reader of the new checkpoint. Its generation is 0, since no worker
    of the new job has computed anything of it.

    Args:
        root: folder of the new job's checkpoints.
        source: folder of the other job's checkpoint.
        source_state: content of its `state.json`.
        job: id of the new job.
        step: step that the new job begins at.
        config_json: config of the new job, a JSON object.
        optimizer_state: state of the update rule to begin with; None takes the other job's.
        fence: fence around the final rename and the removal of leftovers.

    Raises:
        Refused: `state.json` names a file that no checkpoint has.
        Failed: the disk failed, such as when it is full, or the fence did. Nothing is left behind.
    """
    check_file_names(source_state.files.keys() - {MODEL_FILE, OPTIMIZER_FILE})
    state = source_state.model_copy(
        update={"job": job, "generation": 0, "step": step, "config": json.loads(config_json)}
    )

    def fill(folder: Path) -> dict[str, FileRecord]:
        records = dict(source_state.files)
        if optimizer_state is not None:
            records[OPTIMIZER_FILE] = write_file(folder / OPTIMIZER_FILE, pieces(optimizer_state))
        for name in records:
            if name != OPTIMIZER_FILE or optimizer_state is None:
                _link(source / name, folder / name)
        return records

    return write_folder(root, state, fill, fence).path


def _link(file: Path, name: Path) -> None:
    """Give a file a further name; copy it where the file system has no hard links, or no more of this file."""
    try:
        os.link(file.resolve(), name)
    except OSError:
        shutil.copyfile(file, name)
        with name.open("rb") as copy:
            os.fsync(copy.fileno())
