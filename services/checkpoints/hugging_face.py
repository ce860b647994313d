"""Model folders of Hugging Face's tools: `config.json`, and tensors in one or several safetensors files.

Our checkpoints are such folders too. Opening one reads only the headers. A tensor is mapped when it is read.
"""

from __future__ import annotations

import math
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from services.checkpoints.format import MODEL_FILE
from services.checkpoints.safetensors_file import pieces_of
from services.checkpoints.write import write_file
from services.durable_files import sync_folder
from services.errors import Refused
from services.input_files import NoSuchFile, read_input_file
from services.json_text import MODEL_CONFIG, TENSOR_HEADER, parse_json
from services.printable import one_line, printable_path
from services.system_errors import system_error
from services.tensors.kernels.arithmetic import Float32Array

CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
INDEX_FILE = f"{MODEL_FILE}.index.json"

WEIGHT_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Dtypes that weights may have, by their safetensors names, and the numpy dtypes that their bytes are read as."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")


@dataclass(frozen=True)
class StoredTensor:
    """Location of a tensor in a file.

    Attributes:
        file: safetensors file that has the tensor.
        dtype: safetensors name of its dtype. Only those in `WEIGHT_DTYPES` can be read.
        shape: shape of the tensor.
        offset: position of its first byte in the file.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class HuggingFaceFolder:
    """Opened folder of a model.

    Attributes:
        path: path of the folder.
        config: content of `config.json`.
        tensors: locations of the tensors, by name.
        files: names of the files with config and tensors, in the order read.
    """

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    files: tuple[str, ...]

    def read(self, name: str) -> Float32Array:
        """Return a tensor as float32: a read-only view of the file if it is stored as float32, else a copy.

        Raises:
            Refused: there is no such tensor, or its dtype is not in `WEIGHT_DTYPES`.
        """
        stored = self.tensors.get(name)
        if stored is None:
            raise Refused(f"{self.path}: no tensor {name}; expected one of its {len(self.tensors)} tensors")
        if stored.dtype not in WEIGHT_DTYPES:
            raise Refused(
                f"{stored.file}: {name} has dtype {stored.dtype}, expected one of {', '.join(WEIGHT_DTYPES)}; "
                "convert the tensor"
            )
        dtype = np.dtype(WEIGHT_DTYPES[stored.dtype])
        if math.prod(stored.shape) == 0:  # an empty range can't be mapped
            return np.empty(stored.shape, np.float32)
        raw = np.memmap(stored.file, dtype, "r", stored.offset, stored.shape)
        if stored.dtype == "BF16":  # bfloat16 is the upper half of a float32
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return np.asarray(raw, np.float32)


def open_hugging_face(path: Path) -> HuggingFaceFolder:
    """Open a model folder: read `config.json` and the headers of the weights.

    Args:
        path: the folder. It must have `model.safetensors`, or the files that `model.safetensors.index.json` names.

    Raises:
        Refused: a file is missing or malformed.
    """
    if not path.is_dir():
        raise Refused(
            f"{path}: no such folder, expected one with {CONFIG_FILE} and {MODEL_FILE}; correct the path"
        )
    config = _read_json(path / CONFIG_FILE)
    if (path / MODEL_FILE).is_file():
        names = (MODEL_FILE,)
        tensors = _headers(path / MODEL_FILE)
        return HuggingFaceFolder(path, config, tensors, (CONFIG_FILE, *names))
    if not (path / INDEX_FILE).is_file():
        raise Refused(
            f"{path}: neither {MODEL_FILE} nor {INDEX_FILE} is there, expected weights as safetensors; "
            "save the model with save_pretrained"
        )
    return _open_sharded(path, config)


def _open_sharded(path: Path, config: dict[str, Any]) -> HuggingFaceFolder:
    index = _read_json(path / INDEX_FILE).get("weight_map")
    if not isinstance(index, dict) or not all(
        isinstance(file, str) and _PLAIN_NAME.fullmatch(file) for file in index.values()
    ):
        raise Refused(
            f"{path / INDEX_FILE}: expected a weight_map from tensor names to file names; restore the file"
        )
    names = sorted(set(index.values()))
    headers = {name: _headers(path / name) for name in names}
    tensors = {}
    for tensor, file in sorted(index.items()):
        if tensor not in headers[file]:
            raise Refused(
                f"{path / file}: no tensor {tensor}, which {INDEX_FILE} says is there; restore the file"
            )
        tensors[tensor] = headers[file][tensor]
    return HuggingFaceFolder(path, config, tensors, (CONFIG_FILE, INDEX_FILE, *names))


def _headers(path: Path) -> dict[str, StoredTensor]:
    if not path.is_file():
        raise Refused(f"{path}: no such file, expected the weights that {INDEX_FILE} names; restore it")
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = parse_json(file.read(min(size, TENSOR_HEADER.limit_bytes + 1)), TENSOR_HEADER)
        with safe_open(path, framework="np"):  # checks header, offsets and size
            pass
    except (SafetensorError, OSError, ValueError) as error:
        raise Refused(
            f"{path}: no intact safetensors file ({one_line(str(error), 100)}); restore it from a copy"
        ) from None
    header.pop("__metadata__", None)
    return {
        name: StoredTensor(
            path, fields["dtype"], tuple(fields["shape"]), 8 + size + fields["data_offsets"][0]
        )
        for name, fields in header.items()
    }


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(read_input_file("", path, MODEL_CONFIG.limit_bytes), MODEL_CONFIG)
    except NoSuchFile:
        raise Refused(
            f"{path}: no such file, expected one as save_pretrained writes it; restore it"
        ) from None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Refused(f"{path}: expected a JSON object; restore it from a copy")
    return value


def write_hugging_face(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], Float32Array],
    files: Mapping[str, bytes],
) -> str:
    """Write a model folder, complete or not at all; return the SHA-256 of its `model.safetensors`.

    Args:
        path: the folder, which must not exist.
        shapes: shapes of the tensors by name.
        read: function that returns a tensor, given its name. One tensor at a time is in memory.
        files: contents of the other files by name: `config.json`, the tokenizer.

    Raises:
        Refused: the folder can't be written.
        NotYet: the disk is full or failed.
    """
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")  # as long as it is short, any name fits
    try:
        partial.mkdir()
        model = write_file(partial / MODEL_FILE, pieces_of(shapes, read, {"format": "pt"}))
        for name, content in files.items():
            write_file(partial / name, [content])
        sync_folder(partial)
        partial.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise system_error(
            error, f"{printable_path(path)}: not written ({reason}); free space, or give another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return model.sha256
