"""Reading of checkpoints. Every file is verified against its checksum before use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from protos.files_pb2 import FileRef
from services.checkpoints.export import import_tensor, read_constants
from services.checkpoints.format import (
    LAST_STEP,
    MODEL_FILE,
    OPTIMIZER_FILE,
    STATE_FILE,
    Checkpoint,
    FileRecord,
    State,
    canonical_json,
    check_file_names,
    folder_name,
    step_of_folder,
)
from services.errors import Refused
from services.input_files import read_input_file
from services.json_text import CHECKPOINT_STATE
from services.printable import counted, one_line, printable, printable_path
from services.protocol.file_refs import MAX_TEXT_BYTES, make_ref
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout

_HASH_BLOCK_BYTES = 4 * 1024 * 1024

_SHOWN_NAMES = 3

Result = TypeVar("Result")


def read_checkpoint(path: Path, *, with_optimizer: bool = True) -> Checkpoint:
    """Read and verify a checkpoint.

    Args:
        path: folder of the checkpoint.
        with_optimizer: whether to read and verify the optimizer's state, which is twice the model's size for AdamW.

    Raises:
        Refused: a file is missing, truncated or damaged, or its tensors are not those of the layout.
    """
    with _named(path):
        return _read(path, with_optimizer)


def read_refs(path: Path) -> dict[str, FileRef]:
    """Return references to all files of a checkpoint by name. Their sizes are checked, their bytes are not.

    Raises:
        Refused: a file is missing or truncated, or `state.json` is damaged.
    """
    with _named(path):
        try:
            content = read_input_file("", path / STATE_FILE, CHECKPOINT_STATE.limit_bytes)
            state = State.load(content)
        except ValueError as error:
            raise Refused(f"{STATE_FILE} is damaged: {one_line(str(error), 100)}") from None
        check_file_names(state.files.keys() - {MODEL_FILE, OPTIMIZER_FILE})
        for name, record in state.files.items():
            _check_size(path / name, record)
        refs = {name: FileRef(sha256=each.sha256, size=each.bytes) for name, each in state.files.items()}
        return {**refs, STATE_FILE: make_ref(content)}


def read_state(path: Path) -> tuple[State, Layout]:
    """Return a checkpoint's `state.json`, and the layout in it, without looking at the other files.

    Raises:
        Refused: it is missing or damaged.
    """
    with _named(path):
        return _read_state(path)


def list_checkpoints(root: Path) -> list[Path]:
    """Return the folders of a job's checkpoints, oldest first; none if `root` does not exist."""
    return list(checkpoints_by_step(root).values())


def checkpoints_by_step(root: Path) -> dict[int, Path]:
    """Return the folders of a job's checkpoints by step, oldest first; none if `root` does not exist."""
    folders = root.iterdir() if root.is_dir() else ()
    found = ((step_of_folder(folder.name), folder) for folder in folders if folder.is_dir())
    return dict(sorted((step, folder) for step, folder in found if step is not None))


def find_newest(read: Callable[[Path], Result], root: Path) -> tuple[Result | None, list[str]]:
    """Call `read` on checkpoints from the newest to the oldest, until it accepts one.

    Args:
        read: function of a checkpoint's folder. It raises Refused for one that is damaged.
        root: folder of the job's checkpoints.

    Returns:
        The result of `read`, or None if there are no checkpoints; and a line for people about each one refused, and
        about folders that are ignored because no checkpoint has such a name.

    Raises:
        Refused: there are checkpoints, but `read` refuses all.
    """
    damages, ignored = [], _describe_ignored(root)
    for path in reversed(list_checkpoints(root)):
        try:
            result = read(path)
        except Refused as error:
            damages.append(str(error))
        else:
            return result, [*ignored, *(f"{damage}; falling back to {path.name}" for damage in damages)]
    if damages:
        raise Refused(
            f"{counted(len(damages), 'checkpoint')}, none intact; the newest: {damages[0]}; restore one from a copy, "
            "or remove their folder to start from scratch"
        )
    return None, ignored


def _describe_ignored(root: Path) -> list[str]:
    """Return a line about the folders whose names look like those of checkpoints, and are none."""
    names = [path.name for path in root.glob("step-*") if step_of_folder(path.name) is None and path.is_dir()]
    if not names:
        return []
    shown = ", ".join(printable(name, 40) for name in sorted(names)[:_SHOWN_NAMES])
    expected = f"{folder_name(0)} to {folder_name(LAST_STEP)}"
    return [
        f"{printable_path(root)}: ignored {counted(len(names), 'folder')} such as {shown}; checkpoints are {expected}"
    ]


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the checkpoint in errors that the body raises."""
    try:
        yield
    except Refused as error:
        raise Refused(f"checkpoint {printable_path(path)}: {error}") from None
    except OSError as error:
        raise Refused(f"checkpoint {printable_path(path)}: not readable: {error.strerror or error}") from None


def _read(path: Path, with_optimizer: bool) -> Checkpoint:
    state, layout = _read_state(path)
    worker_files = state.files.keys() - {MODEL_FILE, OPTIMIZER_FILE}
    check_file_names(worker_files)
    for name in (MODEL_FILE, *([OPTIMIZER_FILE] if with_optimizer else []), *sorted(worker_files)):
        if name not in state.files:
            raise Refused(f"{STATE_FILE} does not name {name}")
        _verify(path / name, state.files[name])
    files = {name: read_input_file("", path / name, MAX_TEXT_BYTES) for name in sorted(worker_files)}
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
        state = State.read(file)
        return state, Layout.from_json(state.layout)
    except ValueError as error:
        raise Refused(f"{STATE_FILE} is damaged: {one_line(str(error), 100)}") from None


def _check_size(path: Path, record: FileRecord) -> None:
    if not path.is_file():
        raise Refused(f"{path.name} is missing; expected {record.bytes} bytes")
    size = path.stat().st_size
    if size != record.bytes:
        raise Refused(f"{path.name} has {size} bytes, expected {record.bytes}")


def _verify(path: Path, record: FileRecord) -> None:
    _check_size(path, record)
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
    """Return the flat weights of a model file, which must have just the layout's tensors and the constants."""
    weights = np.empty(layout.elements, np.float32)
    with _open(path) as file:
        found, expected = set(file.keys()), {entry.export_name for entry in layout.entries} | constants
        for name in sorted(found ^ expected):
            raise Refused(f"{path.name}: {name} is {'not expected' if name in found else 'missing'}")
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
        raise Refused(
            f"{name!r:.100} has no dtype of a checkpoint ({error}); expected float32 or int64"
        ) from None
    return tensor
