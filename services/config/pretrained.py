"""`transformer_config.model_path`: the checkpoint that a job starts from, held against the job before it is queued."""

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
from services.config.refusals import format_path, format_value, to_one_line
from services.errors import Refused

MODEL_PATH_FIELD = "transformer_config.model_path"
_HASH_BLOCK_BYTES = 4 << 20
_MODELS: dict[str, type[GPT2Config] | type[LlamaConfig]] = {"gpt2": GPT2Config, "llama": LlamaConfig}


@contextmanager
def prefix_field_name() -> Iterator[None]:
    """Errors within name the setting that the checkpoint comes from."""
    try:
        yield
    except Refused as error:
        raise Refused(f"{MODEL_PATH_FIELD}: {error}") from None


def find_checkpoint_folder(text: str, folder: Path) -> Path:
    """The folder that `model_path` names, itself or by the `model.safetensors` in it; looked for as a corpus is.

    Raises:
        Refused: there is none with a `config.json`; the line names every place tried.
    """
    text = text.removesuffix(MODEL_FILE).rstrip("/") or "."
    return find_data(f"{text}/{CONFIG_FILE}", field=MODEL_PATH_FIELD, folder=folder).parent


def open_pretrained(path: Path) -> tuple[PretrainableConfig, HuggingFaceFolder]:
    """A checkpoint's model and its opened folder.

    Args:
        path: folder of a Hugging Face GPT-2 or Llama, or of a checkpoint of ours, whose job knows more of the model
            than `config.json` can say.

    Raises:
        Refused: it is no such folder, or not of a model that a job can start from.
    """
    opened = open_hugging_face(path)
    state = _read_state(path)
    if state is not None:
        return _of_job(state, opened), opened
    return read_architecture(opened.config, path / CONFIG_FILE), opened


def check_tensors(model: PretrainableConfig, opened: HuggingFaceFolder) -> None:
    """Hold names, shapes and dtypes of a checkpoint's tensors against what the model needs, by their headers alone.

    Raises:
        Refused: for the first tensor that is missing, of another shape or dtype, or not the model's.
    """
    stored = opened.tensors
    where = format_path(opened.path)
    used = set()
    for name, shape in expected_tensors(model).items():
        kept = stored_name(name, model, stored)
        used.add(kept)
        if kept not in stored:
            raise Refused(
                f"{where} has no tensor {name}, expected one of shape {list(shape)}; give another checkpoint"
            )
        found = stored[kept]
        longer = may_have_more_rows(name) and found.shape[1:] == shape[1:] and found.shape[0] >= shape[0]
        if found.shape != shape and not longer:
            raise Refused(
                f"{where}: tensor {kept} has shape {list(found.shape)}, expected {list(shape)}, which follows from the "
                f"model's sizes; correct {CONFIG_FILE} or give another checkpoint"
            )
        if found.dtype not in WEIGHT_DTYPES:
            raise Refused(
                f"{where}: tensor {kept} has dtype {found.dtype}, expected one of {', '.join(WEIGHT_DTYPES)}; "
                "convert it"
            )
    for name in sorted(stored.keys() - used):
        if not may_be_ignored(name, model):
            raise Refused(
                f"{where} has tensor {format_value(name)}, expected only tensors of a {model.model_type} with "
                "these sizes; give another checkpoint"
            )


def hash_checkpoint(opened: HuggingFaceFolder) -> PretrainedConfig:
    """The record that a job keeps of a checkpoint: every file that is read of it, with its sha256.

    Raises:
        Refused: a checkpoint of ours is damaged.
    """
    hashes = {name: file_sha256(opened.path / name) for name in opened.files}
    state = _read_state(opened.path)
    for name, record in state.files.items() if state is not None else ():
        if name in hashes and hashes[name] != record.sha256:
            raise Refused(
                f"{format_path(opened.path / name)} is damaged: its sha256 is not the one in {STATE_FILE}; "
                "give another checkpoint"
            )
    return PretrainedConfig(path=str(opened.path), files=hashes)


def find_verified_checkpoint(pretrained: PretrainedConfig, data_dir: Path | None = None) -> Path:
    """The folder of a job's checkpoint on this host, its files held against their sha256.

    Args:
        pretrained: of the job.
        data_dir: folder of this host where a folder of the same name is taken if the job's path isn't there.

    Raises:
        Refused: there is no such folder here, or a file differs from the one that the job was submitted with.
    """
    named = Path(pretrained.path)
    places = [named] + ([data_dir / named.name] if data_dir else [])
    place = next((place for place in places if place.is_dir()), None)
    if place is None:
        looked = ", ".join(format_path(place) for place in places)
        raise Refused(
            f"{MODEL_PATH_FIELD}: no such folder on this host (looked at {looked}); "
            "copy it here or give the worker the folder that it lies in with --data"
        )
    with prefix_field_name():
        for name, expected in pretrained.files.items():
            found = file_sha256(place / name)
            if found != expected:
                raise Refused(
                    f"{format_path(place / name)} has sha256 {found}, the job expects {expected}; copy the file that "
                    "the job was submitted with"
                )
    return place


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes (Refused if it can't be read)."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_HASH_BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise Refused(f"{format_path(path)} can't be read ({error.strerror}); make it readable") from None
    return digest.hexdigest()


def _read_state(path: Path) -> State | None:
    """What `state.json` of a checkpoint of ours says; None where there is none."""
    try:
        return State.load((path / STATE_FILE).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = to_one_line(str(error).splitlines()[0])
        raise Refused(f"{format_path(path / STATE_FILE)} is damaged ({reason}); give another") from None


def _of_job(state: State, opened: HuggingFaceFolder) -> PretrainableConfig:
    """The model of a checkpoint of ours, by the job that it was written for."""
    where = format_path(opened.path / STATE_FILE)
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
        reason = to_one_line(str(error.errors(include_url=False)[0]["msg"]))
        raise Refused(f"{where}: its model is damaged ({reason}); give another checkpoint") from None
