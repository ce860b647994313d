"""Writing of checkpoints, such that each is complete or absent even after a crash or power cut.

All files are written and synchronised in a folder with a temporary name. One rename makes it a checkpoint. A root
folder belongs to one process, the job's optimizer, which removes leftovers of earlier ones.

On shared storage a process may not know yet that another has replaced it. There a fence guards every step that other
processes see.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from services.checkpoints.export import export_tensors, read_constants
from services.checkpoints.format import (
    FORMAT_VERSION,
    MODEL_FILE,
    OPTIMIZER_FILE,
    STATE_FILE,
    CheckpointInfo,
    FileRecord,
    State,
    check_file_names,
    folder_name,
)
from services.checkpoints.safetensors_file import pieces
from services.durable_files import sync_folder
from services.errors import Failed
from services.instrumentation.failpoints import hit_failpoint
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout

Fence: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Context manager during which no other process can replace this one; raises Failed if one already has."""
REMOVED = ".removed"
"""Suffix of the name of a folder that was a checkpoint and is being deleted."""
_TEMPORARY = (".partial", ".replaced", REMOVED)


def write_checkpoint(
    root: Path,
    *,
    job: str,
    generation: int,
    step: int,
    config_json: str,
    layout: Layout,
    weights: Float32Array,
    optimizer_state: Mapping[str, NDArray[np.generic]],
    files: Mapping[str, bytes],
    fence: Fence = nullcontext,
) -> CheckpointInfo:
    """Write the checkpoint `step-%08d` under `root`, and return once it would survive a power cut.

    The call blocks while the disk works; the arrays must not change meanwhile. An existing folder of that step is
    replaced: a job reaches a step again only if it found that step's checkpoint damaged.

    Args:
        root: folder of the job's checkpoints, created if it is missing.
        job: id of the job.
        generation: generation of the weights.
        step: number of updates that the weights have had.
        config_json: config of the whole job, a JSON object.
        layout: layout of the weights.
        weights: the weights, [elements] float32.
        optimizer_state: state of the update rule, float32 and int64 arrays by name.
        files: contents of the worker's files by name: config.json, the tokenizer's, `CONSTANTS_FILE`.
        fence: fence around the final rename and the removal of leftovers.

    Raises:
        Refused: a file's name is not allowed, or two tensors have the same name.
        Failed: the disk failed, such as when it is full, or the fence did. Nothing is left behind.
    """
    if weights.shape != (layout.elements,):
        raise ValueError(f"weights: shape {weights.shape}, expected ({layout.elements},) as the layout says")
    check_file_names(files)
    model = export_tensors(layout, weights, read_constants(files))
    state = State(
        format=FORMAT_VERSION,
        job=job,
        generation=generation,
        step=step,
        config=json.loads(config_json),
        layout=json.loads(json.dumps(layout.to_json())),  # turns tuples into lists, as a reader gets them
        files={},
    )

    def fill(folder: Path) -> dict[str, FileRecord]:
        return {
            MODEL_FILE: write_file(folder / MODEL_FILE, pieces(model, {"format": "pt"})),
            OPTIMIZER_FILE: write_file(folder / OPTIMIZER_FILE, pieces(optimizer_state)),
            **{name: write_file(folder / name, [data]) for name, data in sorted(files.items())},
        }

    return write_folder(root, state, fill, fence)


def write_folder(
    root: Path, state: State, fill: Callable[[Path], dict[str, FileRecord]], fence: Fence
) -> CheckpointInfo:
    """Make the checkpoint `step-%08d` under `root`, and return once it would survive a power cut.

    Args:
        root: folder of the job's checkpoints, created if it is missing.
        state: content of `state.json`, without the records of the files.
        fill: makes all other files in a folder, synchronised, and returns their records.
        fence: fence around the final rename and the removal of leftovers.

    Raises:
        Failed: the disk failed, such as when it is full, or the fence did. Nothing is left behind.
    """
    path = root / folder_name(state.step)
    partial = (
        root / f".{path.name}.{secrets.token_hex(4)}.partial"
    )  # unique, even if another process writes the same step
    try:
        hit_failpoint("checkpoint.before")
        _make_folder(root)
        _remove_leftovers(root, fence)
        partial.mkdir()
        records = fill(partial)
        write_file(partial / STATE_FILE, [state.model_copy(update={"files": records}).dump()])
        sync_folder(partial)
        hit_failpoint("checkpoint.before-rename")
        with fence():
            _move_into_place(partial, path)
    except Failed:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        name = errno.errorcode.get(error.errno or 0, "no errno")
        raise Failed(f"checkpoint {path}: not written: {error.strerror or error} ({name})") from error
    return CheckpointInfo(path, records[MODEL_FILE].sha256)


def write_file(path: Path, data: Iterable[bytes | memoryview]) -> FileRecord:
    """Write pieces to a new file and synchronise it; return its size and SHA-256."""
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        for piece in data:
            file.write(piece)
            hit_failpoint("checkpoint.mid-file")
            digest.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(bytes=size, sha256=digest.hexdigest())


def _move_into_place(partial: Path, path: Path) -> None:
    if path.exists():
        replaced = path.with_name(f".{path.name}.replaced")
        path.rename(replaced)
        try:
            partial.rename(path)
        except OSError:
            replaced.rename(path)
            raise
        sync_folder(path.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        partial.rename(path)
        hit_failpoint("checkpoint.after-rename")
        sync_folder(path.parent)


def _make_folder(path: Path) -> None:
    """Create a folder and its missing parents, and synchronise each name before the next."""
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def _remove_leftovers(root: Path, fence: Fence) -> None:
    leftovers = [folder for folder in root.glob(".step-*") if folder.suffix in _TEMPORARY]
    if not leftovers:
        return
    with fence():  # without it they may belong to the process that replaced this one
        for folder in leftovers:
            shutil.rmtree(folder, ignore_errors=folder.suffix == REMOVED)  # a failure is harmless here
