"""Reading checkpoints: every byte that is used is held against its checksum first."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from services.checkpoints.export import import_tensor, read_constants
from services.checkpoints.format import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    STATE_FILE,
    Checkpoint,
    FileRecord,
    State,
    canonical_json,
    check_file_names,
)
from services.errors import Refused
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout

_FOLDER_NAME = re.compile(r"step-(\d{8,})")
_HASH_BLOCK_BYTES = 4 * 1024 * 1024

Taken = TypeVar("Taken")


def read_checkpoint(path: Path, *, with_optimizer: bool = True) -> Checkpoint:
    """Read and verify a checkpoint.

    Args:
        path: its folder.
        with_optimizer: False leaves the optimizer's state, twice the model for AdamW, unread and unverified.

    Raises:
        Refused: a file is missing, truncated or damaged, or holds other tensors than the layout says.
    """
    with _named(path):
        return _read(path, with_optimizer)


def verify_checkpoint(path: Path) -> Path:
    """Hold every file of a checkpoint against its checksum, holding none of them in memory; returns its folder.

    Raises:
        Refused: a file is missing, truncated or damaged.
    """
    with _named(path):
        state, _ = _read_state(path)
        for name, record in state.files.items():
            _verify(path / name, record)
    return path


def list_checkpoints(root: Path) -> list[Path]:
    """The folders of a job's checkpoints, oldest first; none if `root` isn't there."""
    if not root.is_dir():
        return []
    steps = {
        int(match[1]): folder
        for folder in root.iterdir()
        if (match := _FOLDER_NAME.fullmatch(folder.name)) and folder.is_dir()
    }
    return [steps[step] for step in sorted(steps)]


def read_newest_checkpoint(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is intact, or None where there never was one; and what to tell of newer ones.

    Raises:
        Refused: there are checkpoints, but none is intact: to start afresh must be somebody's decision.
    """
    return find_newest(read_checkpoint, root)


def find_newest(take: Callable[[Path], Taken], root: Path) -> tuple[Taken | None, list[str]]:
    """What `take` makes of the newest checkpoint that it doesn't refuse, as `read_newest_checkpoint` tells it.

    Raises:
        Refused: there are checkpoints, but `take` refuses all.
    """
    damages: list[str] = []
    for path in reversed(list_checkpoints(root)):
        try:
            taken = take(path)
        except Refused as error:
            damages.append(str(error))
        else:
            return taken, [f"{damage}; falling back to {path.name}" for damage in damages]
    if damages:
        raise Refused(
            f"checkpoints {root}: none of {len(damages)} is intact; the newest: {damages[0]};"
            " restore one from a copy, or remove the folder to start afresh"
        )
    return None, []


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors within name the checkpoint."""
    try:
        yield
    except Refused as error:
        raise Refused(f"checkpoint {path}: {error}") from None
    except OSError as error:
        raise Refused(f"checkpoint {path}: not readable: {error.strerror or error}") from None


def _read(path: Path, with_optimizer: bool) -> Checkpoint:
    state, layout = _read_state(path)
    theirs = state.files.keys() - {MODEL_FILE, OPTIMIZER_FILE}
    check_file_names(theirs)
    for name in (MODEL_FILE, *([OPTIMIZER_FILE] if with_optimizer else []), *sorted(theirs)):
        if name not in state.files:
            raise Refused(f"{STATE_FILE} does not name {name}")
        _verify(path / name, state.files[name])
    files = {name: (path / name).read_bytes() for name in sorted(theirs)}
    optimizer_state = _read_tensors(path / OPTIMIZER_FILE) if with_optimizer else {}
    return Checkpoint(
        path=path,
        job=state.job,
        generation=state.generation,
        step=state.step,
        config_json=canonical_json(state.config),
        layout=layout,
        weights=_read_weights(path / MODEL_FILE, layout, set(read_constants(files))),
        optimizer_state=optimizer_state,
        files=files,
        model_sha256=state.files[MODEL_FILE].sha256,
    )


def _read_state(path: Path) -> tuple[State, Layout]:
    if not path.is_dir():
        raise Refused("no such folder; expected one named like step-00000500")
    file = path / STATE_FILE
    if not file.is_file():
        raise Refused(f"{STATE_FILE} is missing; expected a folder written by Tiermesh")
    try:
        state = State.load(file.read_bytes())
        return state, Layout.from_json(state.layout)
    except ValueError as error:
        raise Refused(f"{STATE_FILE} is damaged: {str(error).splitlines()[0]}") from None


def _verify(path: Path, record: FileRecord) -> None:
    if not path.is_file():
        raise Refused(f"{path.name} is missing; expected {record.bytes} bytes")
    size = path.stat().st_size
    if size != record.bytes:
        raise Refused(f"{path.name} has {size} bytes, expected {record.bytes}")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    if digest.hexdigest() != record.sha256:
        raise Refused(f"{path.name} is damaged: sha256 {digest.hexdigest()}, expected {record.sha256}")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="np")
    except SafetensorError as error:
        raise Refused(f"{path.name}: not a safetensors file: {error}") from None


def _read_weights(path: Path, layout: Layout, constants: set[str]) -> Float32Array:
    """The flat weights from a model file that holds the layout's tensors and the constants, no others."""
    weights = np.empty(layout.elements, np.float32)
    with _open(path) as file:
        held, expected = set(file.keys()), {entry.export_name for entry in layout.entries} | constants
        for name in sorted(held ^ expected):
            raise Refused(f"{path.name}: {name} is {'not expected' if name in held else 'missing'}")
        for entry in layout.entries:
            try:
                import_tensor(entry, _tensor(file, entry.export_name), weights)
            except Refused as error:
                raise Refused(f"{path.name}: {error}") from None
    return weights


def _read_tensors(path: Path) -> dict[str, NDArray[np.generic]]:
    with _open(path) as file:
        try:
            return {name: _tensor(file, name) for name in sorted(file.keys())}
        except Refused as error:
            raise Refused(f"{path.name}: {error}") from None


def _tensor(file: Any, name: str) -> NDArray[np.generic]:
    try:
        tensor: NDArray[np.generic] = file.get_tensor(name)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise Refused(f"{name!r:.100} is of no dtype that checkpoints have ({error})") from None
    return tensor
