"""Corpus and tokenizer of a job: found, checked and hashed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from services.config.corpus import PYTHON_REFERENCE, TOKENIZER_BYTES, hash_text_file, python_reference_text
from services.config.job_parts import DataConfig, PretrainedConfig
from services.config.models import RegressionConfig
from services.config.paths import find_data
from services.config.refusals import format_value
from services.config.resolve.model import ResolvedModel
from services.config.sections import TrainingSection
from services.errors import Refused
from services.input_files import read_input_file
from services.printable import printable_path

_TOKENIZER_FILE = "tokenizer.json"
_TOKEN_ID_SUFFIXES = (".csv", ".yaml", ".yml", ".json", ".bin", ".npy")


def resolve_data(
    training: TrainingSection,
    resolved: ResolvedModel,
    folder: Path,
    notices: list[str],
) -> DataConfig | None:
    """Return corpus and tokenizer, or None for a model that makes its data.

    Args:
        training: the `training_config` section.
        resolved: the model, and the checkpoint that it starts from.
        folder: folder of the config, for relative paths.
        notices: list to which a line is appended for each setting without effect.

    Raises:
        Refused: a file is missing, unreadable, too short, or of another kind.
    """
    model, pretrained = resolved.model, resolved.pretrained
    if isinstance(model, RegressionConfig):
        for key in sorted(training.model_fields_set & {"data_path", "tokenizer_type", "tokenizer_path"}):
            notices.append(
                f"training_config.{key}: without effect: {model.model_type} makes its data from the seed"
            )
        return None
    path, sha256, characters = _corpus(training.data_path, folder)
    if training.tokenizer_type == "char" and pretrained is None:
        _check_length(training.data_path, characters, model.max_sequence_length)
        if training.tokenizer_path:
            notices.append("training_config.tokenizer_path: without effect with tokenizer_type char")
        return DataConfig(path=path, sha256=sha256)
    named = training.tokenizer_path
    if pretrained is not None and (training.tokenizer_type == "char" or not named):
        # The checkpoint's token ids belong to its tokenizer; a char tokenizer would assign other ids.
        named = _stored_tokenizer(pretrained)
        if "tokenizer_type" in training.model_fields_set and training.tokenizer_type == "char":
            notices.append(
                "training_config.tokenizer_type: char is without effect with a model_path: "
                "the checkpoint's tokenizer is used"
            )
    tokenizer_path, tokenizer_sha256, tokens = _tokenizer(named, folder)
    size = getattr(model, "vocab_size", None)
    if size is not None and tokens > size:
        raise Refused(
            f"training_config.tokenizer_path: {printable_path(tokenizer_path)} has {tokens} tokens, expected at most "
            f"the {size} of the checkpoint; give the checkpoint's own tokenizer"
        )
    return DataConfig(
        path=path,
        sha256=sha256,
        tokenizer_type="bpe",
        tokenizer_path=tokenizer_path,
        tokenizer_sha256=tokenizer_sha256,
    )


def _stored_tokenizer(pretrained: PretrainedConfig) -> str:
    path = Path(pretrained.path) / _TOKENIZER_FILE
    if not path.is_file():
        raise Refused(
            f"training_config.tokenizer_path: none given, expected {printable_path(path)} in the checkpoint; "
            "set tokenizer_type: bpe and tokenizer_path to the checkpoint's tokenizer"
        )
    return str(path)


def _corpus(text: str, folder: Path) -> tuple[str, str, int]:
    """Return absolute path (or name of the built-in text), sha256 and number of characters."""
    field = "training_config.data_path"
    if text.startswith("builtin:"):
        if text != PYTHON_REFERENCE:
            raise Refused(
                f"{field}: {format_value(text)} given, expected a path or {PYTHON_REFERENCE}; correct it"
            )
        content = python_reference_text()
        return text, hashlib.sha256(content.encode()).hexdigest(), len(content)
    if Path(text).suffix in _TOKEN_ID_SUFFIXES:
        raise Refused(
            f"{field}: {format_value(text)} is not supported yet (a file of token ids); give the text as a .txt, "
            "with tokenizer_type and tokenizer_path"
        )
    path = find_data(text, field=field, folder=folder)
    return str(path), *hash_text_file(path, field)


def _check_length(data_path: str, characters: int, window: int) -> None:
    """Check that the corpus is long enough for one training window and one held-out prediction."""
    training = int(0.9 * characters)
    if training < window + 1 or characters - training < 2:
        raise Refused(
            f"training_config.data_path: {format_value(data_path)} has {characters} characters, expected at least "
            f"{-(-(window + 1) * 10 // 9)} for windows of {window}; give a longer text or a smaller "
            "transformer_config.max_sequence_length"
        )


def _tokenizer(text: str | None, folder: Path) -> tuple[str, str, int]:
    """Return absolute path, sha256 and number of tokens of a `tokenizer.json`, given by its path or its folder."""
    field = "training_config.tokenizer_path"
    if not text:
        raise Refused(f"{field}: none given, expected a tokenizer.json with tokenizer_type bpe; set its path")
    if Path(text).suffix != ".json":
        text = f"{text}/{_TOKENIZER_FILE}"
    path = find_data(text, field=field, folder=folder)
    try:
        content = read_input_file(field, path, TOKENIZER_BYTES)
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict) or "model" not in parsed:
        raise Refused(
            f"{field}: {printable_path(path)} is no tokenizer.json, expected a file of Hugging Face's tokenizers; "
            "correct the path"
        )
    return str(path), hashlib.sha256(content).hexdigest(), _count_tokens(parsed)


def _count_tokens(parsed: dict[str, Any]) -> int:
    """Return one more than the largest token id, or 0 if the file's form is unknown; the worker checks again."""
    model, added = parsed["model"], parsed.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids: list[Any] = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    if isinstance(vocabulary, list):  # Unigram models list pairs of token and score
        ids.append(len(vocabulary) - 1)
    if isinstance(added, list):
        ids += [token.get("id") for token in added if isinstance(token, dict)]
    return max((id_ for id_ in ids if isinstance(id_, int)), default=-1) + 1
