"""Pretrained models: checkpoints of other programs, or of other jobs, read into this layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from services.checkpoints.hugging_face import TOKENIZER_FILE, HuggingFaceFolder
from services.config.architecture import PretrainableConfig, may_have_more_rows, stored_name
from services.config.job import JobConfig
from services.config.pretrained import check_tensors, find_verified_checkpoint, open_pretrained
from services.errors import Refused
from services.input_files import NoSuchFile, read_input_file
from services.json_text import TOKENIZER
from services.tensors.layout import Entry

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class StoredModel:
    """A model in a folder of Hugging Face's format; checkpoints of Tiermesh are such folders too.

    Attributes:
        config: config of the model, with its `vocab_size`.
        folder: the open folder; names and shapes of its tensors have been checked.
    """

    config: PretrainableConfig
    folder: HuggingFaceFolder

    def weights(self, entries: Sequence[Entry], out: Float32Array | None = None) -> Float32Array:
        """Return weights, float32, flat in the order of `entries`. Other tensors are not read.

        Args:
            entries: contiguous entries of the layout of a model built from `config`, or from a config with fewer
                positions.
            out: array to write them to; None for a new one.

        Raises:
            Refused: a tensor is missing, or has another shape than in the layout.
        """
        start = entries[0].offset
        weights = np.empty(entries[-1].stop - start, np.float32) if out is None else out
        for entry in entries:
            name = stored_name(entry.export_name, self.config, self.folder.tensors)
            values = self.folder.read(name)
            if entry.export_transpose:
                values = values.T
            if may_have_more_rows(entry.export_name):
                values = values[: entry.shape[0]]
            if values.shape != entry.shape:
                raise Refused(
                    f"{self.folder.path}: tensor {name} has shape {list(values.shape)}, expected {list(entry.shape)}; "
                    "give another checkpoint"
                )
            weights[entry.offset - start : entry.stop - start] = values.reshape(-1)
        return weights

    def tokenizer_json(self) -> bytes | None:
        """Return the folder's `tokenizer.json`; None if it has none.

        Raises:
            Refused: it can't be read, is no regular file, or is larger than `TOKENIZER` allows.
        """
        path = self.folder.path / TOKENIZER_FILE
        try:
            return read_input_file("", path, TOKENIZER.limit_bytes)
        except NoSuchFile:
            return None


def open_model(path: Path) -> StoredModel:
    """Open a folder with a GPT-2 or a Llama.

    Args:
        path: folder with config.json and model.safetensors (or its parts and their index).

    Raises:
        Refused: it is no such folder, is damaged, or has a model that Tiermesh can't build.
    """
    config, folder = open_pretrained(path)
    check_tensors(config, folder)
    return StoredModel(config, folder)


def load_pretrained_weights(
    config: JobConfig,
    entries: Sequence[Entry],
    data_dir: Path | None = None,
    out: Float32Array | None = None,
) -> Float32Array:
    """Return weights of the checkpoint that a job starts from, float32, flat in layout order.

    Args:
        config: config of the job, with `pretrained`.
        entries: contiguous entries of its model's layout; other tensors are not read.
        data_dir: folder of this host that is searched for a checkpoint missing at the job's path.
        out: array to write them to; None for a new one.

    Raises:
        Refused: the checkpoint is not on this host, or has changed since the job was submitted.
    """
    if config.pretrained is None:
        raise ValueError("job config: no pretrained checkpoint, so there are no weights to load")
    return open_model(find_verified_checkpoint(config.pretrained, data_dir)).weights(entries, out)
