"""Counts the training windows of a job's data, of which each is drawn once in an epoch."""

from __future__ import annotations

from pathlib import Path

from services.config.corpus import (
    PYTHON_REFERENCE,
    python_reference_text,
    summarize_text,
    summarize_text_file,
)
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile
from services.config.models import LinearRegressionConfig, MLPConfig
from services.config.windows import count_training_tokens
from services.corpora.token_file import TokenFile

_FIELD = "training_config.data_path"


def count_epoch_windows(config: JobConfig) -> int | None:
    """Return the number of training windows (or samples) of all files; None if only workers can count the tokens.

    Raises:
        Refused: a file changed while it was read.
    """
    model, data = config.model, config.data
    if isinstance(model, (LinearRegressionConfig, MLPConfig)):
        return count_training_tokens(model.training_samples)
    if data is None or (data.tokenizer_type == "bpe" and any(file.kind == "text" for file in data.files)):
        return None
    window = model.max_sequence_length
    return sum(count_training_tokens(_count_tokens(file)) - window for file in data.files)


def _count_tokens(file: CorpusFile) -> int:
    if file.kind == "tokens":
        return TokenFile.open(Path(file.path), _FIELD, file.identity).count
    if file.path == PYTHON_REFERENCE:
        return summarize_text(python_reference_text()).characters
    return summarize_text_file(Path(file.path), _FIELD).characters
