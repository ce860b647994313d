"""`transformer_config.model_path`: the checkpoint that a job starts from, checked before the job is queued."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from services.checkpoints.format import MODEL_FILE, STATE_FILE, State
from services.checkpoints.hugging_face import (
    CONFIG_FILE,
    WEIGHT_DTYPES,
    HuggingFaceFolder,
    open_hugging_face,
)
from services.config.architecture import (
    PretrainableConfig,
    expected_tensors,
    may_be_ignored,
    may_have_more_rows,
    read_architecture,
    stored_name,
)
from services.config.job_parts import PretrainedConfig
from services.config.models import GPT2Config, LlamaConfig
from services.config.paths import find_data
from services.config.refusals import format_value
from services.errors import Refused
from services.input_files import NoSuchFile, open_input_file
from services.printable import one_line, printable_path

MODEL_PATH_FIELD = "transformer_config.model_path"
_HASH_BLOCK_BYTES = 4 << 20
_MODELS: dict[str, type[GPT2Config] | type[LlamaConfig]] = {"gpt2": GPT2Config, "llama": LlamaConfig}


@contextmanager
def prefix_field_name() -> Iterator[None]:
    """Add the field `transformer_config.model_path` to errors raised inside the `with` block."""
    try:
        yield
    except Refused as error:
        raise Refused(f"{MODEL_PATH_FIELD}: {error}") from None


def find_checkpoint_folder(text: str, folder: Path) -> Path:
    """Return the folder that `model_path` names, itself or by the `model.safetensors` in it.

    It is looked for in the places where a corpus is looked for.

    Raises:
        Refused: none of them has a `config.json`; the line names all of them.
    """
    text = text.removesuffix(MODEL_FILE).rstrip("/") or "."
    return find_data(f"{text}/{CONFIG_FILE}", field=MODEL_PATH_FIELD, folder=folder).parent


def open_pretrained(path: Path) -> tuple[PretrainableConfig, HuggingFaceFolder]:
    """Return a checkpoint's model config and its opened folder.

    Args:
        path: folder of a Hugging Face GPT-2 or Llama, or of a Tiermesh checkpoint. The job stored in the latter says
            more about the model than `config.json` can.

    Raises:
        Refused: it is no such folder, or a job can't start from its model.
    """
    opened = open_hugging_face(path)
    state = _read_state(path)
    if state is not None:
        return _model_from_state(state, opened), opened
    return read_architecture(opened.config, path / CONFIG_FILE), opened


def check_tensors(model: PretrainableConfig, opened: HuggingFaceFolder) -> None:
    """Check names, shapes and dtypes of a checkpoint's tensors, by the headers of its files alone.

    Raises:
        Refused: a tensor is missing, unexpected, or has another shape or dtype; the first one is named.
    """
    stored = opened.tensors
    where = printable_path(opened.path)
    used = set()
    for name, shape in expected_tensors(model).items():
        stored_key = stored_name(name, model, stored)
        used.add(stored_key)
        if stored_key not in stored:
            raise Refused(
                f"{where} has no tensor {name}, expected shape {list(shape)}; give another checkpoint"
            )
        found = stored[stored_key]
        longer = may_have_more_rows(name) and found.shape[1:] == shape[1:] and found.shape[0] >= shape[0]
        if found.shape != shape and not longer:
            raise Refused(
                f"{where}: tensor {stored_key} has shape {list(found.shape)}, expected {list(shape)} by the "
                f"model's sizes; correct {CONFIG_FILE} or give another checkpoint"
            )
        if found.dtype not in WEIGHT_DTYPES:
            raise Refused(
                f"{where}: tensor {stored_key} has dtype {found.dtype}, expected one of {', '.join(WEIGHT_DTYPES)}; "
                "convert it"
            )
    for name in sorted(stored.keys() - used):
        if not may_be_ignored(name, model):
            raise Refused(
                f"{where} has tensor {format_value(name)}, expected only tensors of a {model.model_type} with "
                "these sizes; give another checkpoint"
            )


def hash_checkpoint(opened: HuggingFaceFolder) -> PretrainedConfig:
    """Return the record that a job keeps of a checkpoint: the sha256 of every file that training reads.

    Raises:
        Refused: a Tiermesh checkpoint is damaged.
    """
    hashes = {name: file_sha256(opened.path / name) for name in opened.files}
    state = _read_state(opened.path)
    if state is not None:
        hashes[STATE_FILE] = file_sha256(opened.path / STATE_FILE)
    for name, record in state.files.items() if state is not None else ():
        if name in hashes and hashes[name] != record.sha256:
            raise Refused(
                f"{printable_path(opened.path / name)} is damaged: its sha256 is not the one in {STATE_FILE}; "
                "give another checkpoint"
            )
    return PretrainedConfig(path=str(opened.path), files=hashes)


def find_verified_checkpoint(pretrained: PretrainedConfig, data_dir: Path | None = None) -> Path:
    """Return the folder of a job's checkpoint on this host, after its files are verified by their sha256.

    Args:
        pretrained: the job's record of the checkpoint.
        data_dir: folder of this host in which a folder of the same name is taken, if the job's path doesn't exist.

    Raises:
        Refused: there is no such folder here, or a file differs from the one that the job was submitted with.
    """
    named = Path(pretrained.path)
    places = [named] + ([data_dir / named.name] if data_dir else [])
    place = next((place for place in places if place.is_dir()), None)
    if place is None:
        listed = ", ".join(printable_path(place) for place in places)
        raise Refused(
            f"{MODEL_PATH_FIELD}: no such folder on this host (looked at {listed}); "
            "copy it here, or give the worker its parent folder with --data"
        )
    with prefix_field_name():
        for name, expected in pretrained.files.items():
            found = file_sha256(place / name)
            if found != expected:
                raise Refused(
                    f"{printable_path(place / name)} has sha256 {found}, the job expects {expected}; "
                    "copy the file that the job was submitted with"
                )
    return place


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's bytes.

    Raises:
        Refused: the file can't be read.
    """
    digest = hashlib.sha256()
    try:
        with open_input_file("", path) as file:
            while block := file.read(_HASH_BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise Refused(f"{printable_path(path)} can't be read ({error.strerror}); make it readable") from None
    return digest.hexdigest()


def _read_state(path: Path) -> State | None:
    """Return the `state.json` of a Tiermesh checkpoint, or None if there is none."""
    try:
        return State.read(path / STATE_FILE)
    except NoSuchFile:
        return None
    except ValueError as error:
        reason = one_line(str(error), 100)
        raise Refused(f"{printable_path(path / STATE_FILE)} is damaged ({reason}); give another") from None


def _model_from_state(state: State, opened: HuggingFaceFolder) -> PretrainableConfig:
    """Return the model of a Tiermesh checkpoint, from the config of the job that wrote it."""
    where = printable_path(opened.path / STATE_FILE)
    fields = state.config.get("model")
    kind = fields.get("model_type") if isinstance(fields, dict) else None
    model_class = _MODELS.get(str(kind))
    if model_class is None:
        raise Refused(
            f"{where}: its model_type is {format_value(kind)}, expected gpt2 or llama; give another checkpoint"
        )
    try:
        model = model_class.model_validate(fields)
        size = model.vocab_size or opened.config.get("vocab_size")
        return model_class.model_validate(model.model_dump() | {"vocab_size": size})
    except ValidationError as error:
        reason = one_line(str(error.errors(include_url=False)[0]["msg"]))
        raise Refused(f"{where}: its model is damaged ({reason}); give another checkpoint") from None
