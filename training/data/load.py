"""Opens the corpus of a job: texts are read and tokenized."""

from __future__ import annotations

from pathlib import Path

from services.config.corpus import read_text, read_tokenizer
from services.config.job_parts import DataConfig
from training.data.tokenizer import Tokenizer, build_character_tokenizer, load_tokenizer
from training.data.tokens import TokenArray, TokenSource


def load_corpus(data: DataConfig, data_dir: Path | None) -> tuple[list[TokenSource], Tokenizer]:
    """Return the token ids of each file of the corpus, and the tokenizer that made them.

    Args:
        data: data config of the job.
        data_dir: folder of this host that is searched for files missing at the job's path.

    Raises:
        Refused: a file is missing, is unusable, or has changed since the job was submitted.
    """
    texts = [read_text(file, data_dir) for file in data.files]
    if data.tokenizer_type == "char":
        tokenizer = build_character_tokenizer(set().union(*texts))
    else:
        tokenizer = load_tokenizer(read_tokenizer(data, data_dir), data.tokenizer_path or "")
    return [TokenArray(tokenizer.encode(text)) for text in texts], tokenizer
