"""Tokenizer of a job: made from its texts, read from a file, or that of the checkpoint that it starts from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from services.config.job_parts import PretrainedConfig, TokenizerType
from services.config.paths import find_data
from services.config.sections import TrainingSection
from services.errors import Refused
from services.input_files import read_input_file
from services.json_text import TOKENIZER, parse_json
from services.printable import printable_path

_FIELD = "training_config.tokenizer_path"
_FILE = "tokenizer.json"
_DEFAULT = "data/gpt2-tokenizer.json"
"""tt-train's tokenizer of texts with `tokenizer_type: bpe` that name none."""
_SPECIAL_TOKENS = 3
"""Tokens of a character tokenizer that are no characters."""


@dataclass(frozen=True)
class FoundTokenizer:
    """A tokenizer.

    Attributes:
        type: its kind.
        path: absolute path of its file, if it has one.
        sha256: sha256 of the file's bytes.
        tokens: largest token id plus 1; None without a tokenizer, or if the file's form is unknown and only workers can
            tell.
    """

    type: TokenizerType
    path: str | None = None
    sha256: str | None = None
    tokens: int | None = None


def find_text_tokenizer(
    training: TrainingSection,
    pretrained: PretrainedConfig | None,
    alphabet: frozenset[str],
    folder: Path,
    notices: list[str],
) -> FoundTokenizer:
    """Return the tokenizer of a corpus with texts.

    Args:
        training: the `training_config` section.
        pretrained: checkpoint that the job starts from.
        alphabet: characters of all texts.
        folder: folder of the config, for a relative path.
        notices: list to which a line is appended for each setting without effect.

    Raises:
        Refused: there is none, or its file is of another kind.
    """
    if training.tokenizer_type == "char" and pretrained is None:
        if training.tokenizer_path:
            notices.append(f"{_FIELD}: without effect with tokenizer_type char")
        return FoundTokenizer("char", tokens=len(alphabet) + _SPECIAL_TOKENS)
    named = training.tokenizer_path
    if pretrained is not None and (training.tokenizer_type == "char" or not named):
        # The checkpoint's token ids belong to its tokenizer; a char tokenizer would assign other ids.
        stored = Path(pretrained.path) / _FILE
        if not stored.is_file():
            raise Refused(
                f"{_FIELD}: none given, expected {printable_path(stored)} in the checkpoint; "
                "set tokenizer_type: bpe and tokenizer_path to the checkpoint's tokenizer"
            )
        named = str(stored)
        if "tokenizer_type" in training.model_fields_set and training.tokenizer_type == "char":
            notices.append(
                "training_config.tokenizer_type: char is without effect with a model_path: "
                "the checkpoint's tokenizer is used"
            )
    if not named:
        named = _DEFAULT
        notices.append(f"{_FIELD}: not given; tt-train's default, {named}, is used")
    return _read(named, folder)


def find_token_tokenizer(
    training: TrainingSection, pretrained: PretrainedConfig | None, folder: Path, notices: list[str]
) -> FoundTokenizer:
    """Return the tokenizer that goes with a corpus of token ids, for the job's checkpoints; it may have none.

    See `find_text_tokenizer` for the arguments.

    Raises:
        Refused: a tokenizer is named, and its file is missing or of another kind.
    """
    if "tokenizer_type" in training.model_fields_set and training.tokenizer_type == "char":
        notices.append("training_config.tokenizer_type: char is without effect: the corpus is token ids")
    named = training.tokenizer_path
    if not named and pretrained is not None and (stored := Path(pretrained.path) / _FILE).is_file():
        named = str(stored)
    return _read(named, folder) if named else FoundTokenizer("none")


def _read(text: str, folder: Path) -> FoundTokenizer:
    """Return the tokenizer in a `tokenizer.json`, given by its path or its folder."""
    if Path(text).suffix != ".json":
        text = f"{text}/{_FILE}"
    path = find_data(text, field=_FIELD, folder=folder)
    try:
        content = read_input_file(_FIELD, path, TOKENIZER.limit_bytes)
        parsed = parse_json(content, TOKENIZER)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or "model" not in parsed:
        raise Refused(
            f"{_FIELD}: {printable_path(path)} is no tokenizer.json, expected a file of Hugging Face's tokenizers; "
            "correct the path"
        )
    return FoundTokenizer("bpe", str(path), hashlib.sha256(content).hexdigest(), _count_tokens(content, path))


def _count_tokens(content: bytes, path: Path) -> int | None:
    """Return one more than the largest token id, as workers count it; None if this host can't read the file.

    The library gives added tokens ids of its own, whatever the file says.
    """
    from services.config.tokenizer_file import parse_tokenizer  # loaded for jobs that have such a file alone

    try:
        return 1 + max(parse_tokenizer(content, str(path)).get_vocab().values())
    except Refused:
        return None
