"""Corpus and tokenizer of a job: found, checked and hashed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.config.corpus import (
    PYTHON_REFERENCE,
    TOKENIZER_BYTES,
    TextSummary,
    count_training_tokens,
    python_reference_text,
    summarize_text,
    summarize_text_file,
)
from services.config.job_parts import CorpusFile, DataConfig, PretrainedConfig, TokenizerType
from services.config.models import RegressionConfig
from services.config.paths import find_data
from services.config.refusals import format_value
from services.config.resolve.model import ResolvedModel
from services.config.sections import CorpusFileSection, TrainingSection
from services.errors import Refused
from services.input_files import read_input_file
from services.printable import printable_path

_TOKENIZER_FILE = "tokenizer.json"
_DEFAULT_TOKENIZER = "data/gpt2-tokenizer.json"
"""tt-train's tokenizer of jobs with `tokenizer_type: bpe` that name none."""
_TOKEN_ID_SUFFIXES = (".csv", ".yaml", ".yml", ".json", ".bin", ".npy")
_SPECIAL_TOKENS = 3
"""Tokens of a character tokenizer that are no characters."""


@dataclass(frozen=True)
class _FoundFile:
    """A file of the corpus.

    Attributes:
        place: the setting that names it and the path in it, as errors begin.
        record: the job's record of it.
        text: summary of the text.
    """

    place: str
    record: CorpusFile
    text: TextSummary


@dataclass(frozen=True)
class _FoundTokenizer:
    """A tokenizer.

    Attributes:
        type: its kind.
        path: absolute path of its file, if it has one.
        sha256: sha256 of the file's bytes.
        tokens: largest token id plus 1; None if the file's form is unknown, and only workers can tell.
    """

    type: TokenizerType
    path: str | None = None
    sha256: str | None = None
    tokens: int | None = None


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
    files = _find_files(training.data_path, folder)
    tokenizer = _find_tokenizer(training, pretrained, files, folder, notices)
    size = getattr(model, "vocab_size", None)
    if size is not None and tokenizer.tokens is not None and tokenizer.tokens > size:
        raise Refused(
            f"training_config.tokenizer_path: {printable_path(tokenizer.path)} has {tokenizer.tokens} tokens, "
            f"expected at most the {size} of the checkpoint; give the checkpoint's own tokenizer"
        )
    if tokenizer.type == "char":
        for file in files:
            _check_length(file, model.max_sequence_length)
    return DataConfig(
        files=tuple(file.record for file in files),
        tokenizer_type=tokenizer.type,
        tokenizer_path=tokenizer.path,
        tokenizer_sha256=tokenizer.sha256,
        vocab_size=tokenizer.tokens,
    )


def _find_files(sections: list[CorpusFileSection], folder: Path) -> list[_FoundFile]:
    if len(sections) == 1:
        return [_find_file(sections[0].path, None, "training_config.data_path", folder)]
    return [
        _find_file(section.path, section.weight, f"training_config.data_path[{index}]", folder)
        for index, section in enumerate(sections)
    ]


def _find_file(text: str, weight: float | None, field: str, folder: Path) -> _FoundFile:
    place = f"{field}: {format_value(text)}"
    if text.startswith("builtin:"):
        if text != PYTHON_REFERENCE:
            raise Refused(f"{place} given, expected a path or {PYTHON_REFERENCE}; correct it")
        summary = summarize_text(python_reference_text())
    elif Path(text).suffix in _TOKEN_ID_SUFFIXES:
        raise Refused(
            f"{place} is not supported yet (a file of token ids); give the text as a .txt, "
            "with tokenizer_type and tokenizer_path"
        )
    else:
        path = find_data(text, field=field, folder=folder)
        text, summary = str(path), summarize_text_file(path, field)
    return _FoundFile(place, CorpusFile(path=text, sha256=summary.sha256, weight=weight), summary)


def _check_length(file: _FoundFile, window: int) -> None:
    """Check that a file is long enough for one training window and one held-out prediction."""
    tokens = file.text.characters
    training = count_training_tokens(tokens)
    if training < window + 1 or tokens - training < 2:
        raise Refused(
            f"{file.place} has {tokens} characters, expected at least "
            f"{-(-(window + 1) * 10 // 9)} for windows of {window}; give a longer text or a smaller "
            "transformer_config.max_sequence_length"
        )


def _find_tokenizer(
    training: TrainingSection,
    pretrained: PretrainedConfig | None,
    files: list[_FoundFile],
    folder: Path,
    notices: list[str],
) -> _FoundTokenizer:
    if training.tokenizer_type == "char" and pretrained is None:
        if training.tokenizer_path:
            notices.append("training_config.tokenizer_path: without effect with tokenizer_type char")
        alphabet = frozenset[str]().union(*(file.text.alphabet for file in files))
        return _FoundTokenizer("char", tokens=len(alphabet) + _SPECIAL_TOKENS)
    named = training.tokenizer_path
    if pretrained is not None and (training.tokenizer_type == "char" or not named):
        # The checkpoint's token ids belong to its tokenizer; a char tokenizer would assign other ids.
        named = _stored_tokenizer(pretrained)
        if "tokenizer_type" in training.model_fields_set and training.tokenizer_type == "char":
            notices.append(
                "training_config.tokenizer_type: char is without effect with a model_path: "
                "the checkpoint's tokenizer is used"
            )
    if not named:
        named = _DEFAULT_TOKENIZER
        notices.append(f"training_config.tokenizer_path: not given; tt-train's default, {named}, is used")
    return _read_tokenizer(named, folder)


def _stored_tokenizer(pretrained: PretrainedConfig) -> str:
    path = Path(pretrained.path) / _TOKENIZER_FILE
    if not path.is_file():
        raise Refused(
            f"training_config.tokenizer_path: none given, expected {printable_path(path)} in the checkpoint; "
            "set tokenizer_type: bpe and tokenizer_path to the checkpoint's tokenizer"
        )
    return str(path)


def _read_tokenizer(text: str, folder: Path) -> _FoundTokenizer:
    """Return the tokenizer in a `tokenizer.json`, given by its path or its folder."""
    field = "training_config.tokenizer_path"
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
    return _FoundTokenizer("bpe", str(path), hashlib.sha256(content).hexdigest(), _count_tokens(parsed))


def _count_tokens(parsed: dict[str, Any]) -> int | None:
    """Return one more than the largest token id, or None if the file's form is unknown; the worker checks again."""
    model, added = parsed["model"], parsed.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids: list[Any] = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    if isinstance(vocabulary, list):  # Unigram models list pairs of token and score
        ids.append(len(vocabulary) - 1)
    if isinstance(added, list):
        ids += [token.get("id") for token in added if isinstance(token, dict)]
    return max((id_ for id_ in ids if isinstance(id_, int)), default=-1) + 1 or None
