"""Writing a checkpoint so that it is complete or absent, whenever the process or the power goes.

Everything is written and synchronised in a folder with a temporary name beside the others; one rename makes it a
checkpoint. A root folder belongs to one process, the job's optimizer: it removes what an earlier one left behind. Where
storage is shared, a process that another has replaced may not know of that yet: then a fence is between it and whatever
others see.
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
)
from services.checkpoints.safetensors_file import pieces
from services.errors import Failed
from services.instrumentation.failpoints import hit_failpoint
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout

Fence: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Holds off whoever would replace this process, for as long as it is held; raises Failed once one has."""
REMOVED = ".removed"
"""What ends the name of a folder that was a checkpoint and is about to go."""
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
    """Write the checkpoint `step-%08d` under `root`, and return when it would survive a power cut.

    Blocks for as long as the disk takes; the arrays must not change meanwhile. A folder of that name is replaced:
    a job comes to a step a second time only where that step's checkpoint was found damaged.

    Args:
        root: folder of the job's checkpoints; made if it isn't there.
        job: id of the job.
        generation: of the weights.
        step: updates that made the weights.
        config_json: the complete job, a JSON object.
        layout: of the weights.
        weights: [elements] float32.
        optimizer_state: of the update rule: float32 and int64 arrays by name.
        files: further files, by plain name: config.json, the tokenizer's, and `CONSTANTS_FILE`.
        fence: held while it is given its name, and while leftovers are removed.

    Raises:
        Refused: a file's name is not plain or is the checkpoint's own, or the tensors' names clash.
        Failed: the disk refused, e.g. because it is full, or the fence; nothing is left behind.
    """
    if weights.shape != (layout.elements,):
        raise ValueError(f"weights {weights.shape}: the layout has {layout.elements} elements")
    check_file_names(files)
    model = export_tensors(layout, weights, read_constants(files))
    path = root / f"step-{step:08d}"
    partial = root / f".{path.name}.{secrets.token_hex(4)}.partial"  # nobody else's, whoever else writes it
    try:
        hit_failpoint("checkpoint.before")
        _make_folder(root)
        _remove_leftovers(root, fence)
        partial.mkdir()
        records = {
            MODEL_FILE: _write(partial / MODEL_FILE, pieces(model, {"format": "pt"})),
            OPTIMIZER_FILE: _write(partial / OPTIMIZER_FILE, pieces(optimizer_state)),
            **{name: _write(partial / name, [data]) for name, data in sorted(files.items())},
        }
        state = State(
            format=FORMAT_VERSION,
            job=job,
            generation=generation,
            step=step,
            config=json.loads(config_json),
            layout=json.loads(json.dumps(layout.to_json())),  # tuples become lists, as a reader sees them
            files=records,
        )
        _write(partial / STATE_FILE, [state.dump()])
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


def _write(path: Path, data: Iterable[bytes | memoryview]) -> FileRecord:
    """Write the pieces to a new file and put it on the disk."""
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
    """Make a folder and those above it, each name on the disk before the next."""
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def _remove_leftovers(root: Path, fence: Fence) -> None:
    leftovers = [folder for folder in root.glob(".step-*") if folder.suffix in _TEMPORARY]
    if not leftovers:
        return
    with fence():  # else they may be what the process after this one writes
        for folder in leftovers:
            shutil.rmtree(folder, ignore_errors=folder.suffix == REMOVED)  # nothing hangs on that one


def sync_folder(folder: Path) -> None:
    """Put a folder's list of names on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
