"""Data of a job: the files of its corpus, found, checked and hashed, with their tokenizer and vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.config.corpus import (
    PYTHON_REFERENCE,
    python_reference_text,
    summarize_text,
    summarize_text_file,
)
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import (
    AnyModelConfig,
    CustomConfig,
    ExternalConfig,
    RegressionConfig,
    TransformerConfig,
)
from services.config.paths import find_data
from services.config.refusals import format_value
from services.config.resolve.model import ResolvedModel
from services.config.resolve.tokenizer import FoundTokenizer, find_text_tokenizer, find_token_tokenizer
from services.config.resolve.vocabulary import SIZE_FIELD, text_vocabulary, token_vocabulary
from services.config.sections import CorpusFileSection, TrainingSection
from services.config.windows import count_training_windows
from services.corpora.sidecar import TokenSidecar
from services.corpora.token_file import SUFFIXES, describe_token_file, is_token_file, refuse_ids_beyond
from services.errors import Refused
from services.printable import printable_path

_FIELD = "training_config.data_path"


@dataclass(frozen=True)
class ResolvedData:
    """Data of a job.

    Attributes:
        config: corpus and tokenizer; None for a model that makes its data.
        model: the job's model, with its vocabulary.
        lengths: tokens of each file (or samples); None for a text whose tokens only its tokenizer can count.
    """

    config: DataConfig | None
    model: AnyModelConfig
    lengths: tuple[int | None, ...]


@dataclass(frozen=True)
class _FoundFile:
    """A file of the corpus.

    Attributes:
        field: dotted name of the setting that names it.
        name: the file as the setting names it.
        record: the job's record of it.
        characters: number of characters of a text; 0 for token ids.
        alphabet: characters of a text.
        sidecar: description of a file of token ids; None for a text.
    """

    field: str
    name: str
    record: CorpusFile
    characters: int = 0
    alphabet: frozenset[str] = frozenset()
    sidecar: TokenSidecar | None = None

    @property
    def place(self) -> str:
        """The setting and the file, as errors begin."""
        return f"{self.field}: {format_value(self.name)}"


def resolve_data(
    training: TrainingSection, resolved: ResolvedModel, folder: Path, notices: list[str]
) -> ResolvedData:
    """Return the data of a job, and its model with the vocabulary of that data.

    Args:
        training: the `training_config` section.
        resolved: the model, and the checkpoint that it starts from.
        folder: folder of the config, for relative paths.
        notices: list to which a line is appended for each setting without effect.

    Raises:
        Refused: a file is missing, unreadable, too short, or of another kind, or has ids beyond the vocabulary.
    """
    model = resolved.model
    if isinstance(model, RegressionConfig):
        for key in sorted(training.model_fields_set & {"data_path", "tokenizer_type", "tokenizer_path"}):
            notices.append(
                f"training_config.{key}: without effect: {model.model_type} makes its data from the seed"
            )
        return ResolvedData(None, model, (model.training_samples,))
    if isinstance(model, ExternalConfig):
        return ResolvedData(None, model, (None,))
    files = _find_files(training.data_path, folder)
    if any(file.sidecar is None for file in files):
        alphabet = frozenset[str]().union(*(file.alphabet for file in files))
        tokenizer = find_text_tokenizer(training, resolved.pretrained, alphabet, folder, notices)
        model = text_vocabulary(training, resolved.pretrained, model, tokenizer, notices)
        vocabulary = tokenizer.tokens
    else:
        tokenizer = find_token_tokenizer(training, resolved.pretrained, folder, notices)
        made_with = [file.sidecar.tokenizer_vocab_size or 0 for file in files if file.sidecar is not None]
        vocabulary = token_vocabulary(model, max(made_with) or None, tokenizer)
        if not isinstance(model, CustomConfig):
            model = model.model_copy(update={"vocab_size": vocabulary})
    config = DataConfig(
        files=tuple(file.record for file in files),
        tokenizer_type=tokenizer.type,
        tokenizer_path=tokenizer.path,
        tokenizer_sha256=tokenizer.sha256,
        vocab_size=vocabulary,
    )
    _check_token_ids(files, model, vocabulary, tokenizer)
    lengths = [_length(file, tokenizer) for file in files]
    for file, length in zip(files, lengths, strict=True):
        if length is not None:  # refuses a short file
            unit = "characters" if file.sidecar is None else "token ids"
            count_training_windows(length, model.max_sequence_length, file.place, unit)
    return ResolvedData(config, model, tuple(lengths))


def _find_files(sections: Sequence[CorpusFileSection], folder: Path) -> list[_FoundFile]:
    if len(sections) == 1:
        return [_find_file(sections[0].path, None, _FIELD, folder)]
    return [
        _find_file(section.path, section.weight, f"{_FIELD}[{index}]", folder)
        for index, section in enumerate(sections)
    ]


def _find_file(name: str, weight: float | None, field: str, folder: Path) -> _FoundFile:
    if name.startswith("builtin:"):
        if name != PYTHON_REFERENCE:
            raise Refused(
                f"{field}: {format_value(name)} given, expected a path or {PYTHON_REFERENCE}; correct it"
            )
        path, summary = name, summarize_text(python_reference_text())
    else:
        found = find_data(name, field=field, folder=folder)
        path = str(found)
        if is_token_file(found):
            sidecar = describe_token_file(found, field)
            record = CorpusFile(
                path=path, kind="tokens", sha256=sidecar.sha256, identity=sidecar.identity, weight=weight
            )
            return _FoundFile(field, name, record, sidecar=sidecar)
        if found.suffix == ".json":
            raise Refused(
                f"{field}: {format_value(name)} given, expected a text, or token ids as {', '.join(SUFFIXES)}; "
                "convert it"
            )
        summary = summarize_text_file(found, field)
    record = CorpusFile(path=path, sha256=summary.sha256, weight=weight)
    return _FoundFile(field, name, record, summary.characters, summary.alphabet)


def _check_token_ids(
    files: Sequence[_FoundFile],
    model: TransformerConfig,
    vocabulary: int | None,
    tokenizer: FoundTokenizer,
) -> None:
    """Check that all token ids belong to the vocabulary, and were made with the job's tokenizer if they say so."""
    size = getattr(model, "vocab_size", None) or vocabulary
    for file in files:
        if file.sidecar is None:
            continue
        if size is not None:
            refuse_ids_beyond(file.sidecar, size, file.field, file.name, SIZE_FIELD)
        if tokenizer.tokens is not None:
            refuse_ids_beyond(
                file.sidecar, tokenizer.tokens, file.field, file.name, "training_config.tokenizer_path"
            )
        made_with = file.sidecar.tokenizer_sha256
        if tokenizer.sha256 is not None and made_with not in (None, tokenizer.sha256):
            raise Refused(
                f"training_config.tokenizer_path: {printable_path(tokenizer.path)} has sha256 "
                f"{tokenizer.sha256[:16]}..., the ids of {format_value(file.name)} were made with a tokenizer of "
                f"sha256 {made_with:.16}...; give that one"
            )


def _length(file: _FoundFile, tokenizer: FoundTokenizer) -> int | None:
    """Return the number of tokens of a file; None for a text whose tokens only its tokenizer can count."""
    if file.sidecar is not None:
        return file.sidecar.count
    return file.characters if tokenizer.type == "char" else None
