"""Corpus and tokenizer of a job: found, held to be of use, hashed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from services.config.corpus import PYTHON_REFERENCE, builtin_text, scan
from services.config.models import RegressionConfig, TransformerConfig
from services.config.parts import DataConfig
from services.config.places import find_data
from services.config.problems import shown, shown_path
from services.config.schema import TrainingSection
from services.errors import Refused

_TOKEN_ID_SUFFIXES = (".csv", ".yaml", ".yml", ".json", ".bin", ".npy")


def resolve_data(
    training: TrainingSection,
    model: TransformerConfig | RegressionConfig,
    folder: Path,
    notices: list[str],
) -> DataConfig | None:
    """Corpus and tokenizer, found and hashed; None for a model that makes its data.

    Args:
        training: the section.
        model: of the job.
        folder: of the config, for relative paths.
        notices: gets a line for each setting that is without effect.

    Raises:
        Refused: a file is missing, unreadable, too short, or of another kind.
    """
    if isinstance(model, RegressionConfig):
        for key in sorted(training.model_fields_set & {"data_path", "tokenizer_type", "tokenizer_path"}):
            notices.append(
                f"training_config.{key}: without effect: {model.model_type} makes its data from the seed"
            )
        return None
    path, sha256, characters = _corpus(training.data_path, folder)
    if training.tokenizer_type == "char":
        _hold_length(training.data_path, characters, model.max_sequence_length)
        if training.tokenizer_path:
            notices.append("training_config.tokenizer_path: without effect with tokenizer_type char")
        return DataConfig(path=path, sha256=sha256)
    tokenizer_path, tokenizer_sha256 = _tokenizer(training.tokenizer_path, folder)
    return DataConfig(
        path=path,
        sha256=sha256,
        tokenizer_type="bpe",
        tokenizer_path=tokenizer_path,
        tokenizer_sha256=tokenizer_sha256,
    )


def _corpus(text: str, folder: Path) -> tuple[str, str, int]:
    """Absolute path (or name of a built-in text), sha256, characters."""
    field = "training_config.data_path"
    if text.startswith("builtin:"):
        if text != PYTHON_REFERENCE:
            raise Refused(f"{field}: {shown(text)} given, expected a path or {PYTHON_REFERENCE}; correct it")
        content = builtin_text()
        return text, hashlib.sha256(content.encode()).hexdigest(), len(content)
    if Path(text).suffix in _TOKEN_ID_SUFFIXES:
        raise Refused(
            f"{field}: {shown(text)} is not built yet (a file of token ids); give the text as a .txt, "
            "with tokenizer_type and tokenizer_path"
        )
    path = find_data(text, field=field, folder=folder)
    return str(path), *scan(path, field)


def _hold_length(data_path: str, characters: int, window: int) -> None:
    """Hold the corpus to be long enough for one training window and one held-out prediction."""
    training = int(0.9 * characters)
    if training < window + 1 or characters - training < 2:
        raise Refused(
            f"training_config.data_path: {shown(data_path)} has {characters} characters, expected at least "
            f"{-(-(window + 1) * 10 // 9)} for windows of {window}; give a longer text or a smaller "
            "transformer_config.max_sequence_length"
        )


def _tokenizer(text: str | None, folder: Path) -> tuple[str, str]:
    """Absolute path and sha256 of the `tokenizer.json` that a path names, itself or its folder."""
    field = "training_config.tokenizer_path"
    if not text:
        raise Refused(
            f"{field}: none given, expected a tokenizer.json with tokenizer_type bpe; give its path"
        )
    if Path(text).suffix != ".json":
        text = f"{text}/tokenizer.json"
    path = find_data(text, field=field, folder=folder)
    try:
        content = path.read_bytes()
        parsed = json.loads(content)
    except OSError as error:
        raise Refused(
            f"{field}: {shown_path(path)} can't be read ({error.strerror}); make it readable"
        ) from None
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict) or "model" not in parsed:
        raise Refused(
            f"{field}: {shown_path(path)} is no tokenizer.json, expected one of Hugging Face tokenizers; "
            "correct the path"
        )
    return str(path), hashlib.sha256(content).hexdigest()
