"""Reads and tokenizes the corpus of a job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from services.config.corpus import read_corpus, read_tokenizer
from services.config.job_parts import DataConfig
from training.data.tokenizer import Tokenizer, build_character_tokenizer, load_tokenizer


def load_tokens(data: DataConfig, data_dir: Path | None) -> tuple[npt.NDArray[np.uint32], Tokenizer]:
    """Return the ids of the whole corpus, and the tokenizer that made them.

    Args:
        data: data config of the job.
        data_dir: folder of this host that is searched for files missing at the job's path.

    Raises:
        Refused: a file is missing, is unusable, or has changed since the job was submitted.
    """
    text = read_corpus(data, data_dir).replace("\r\n", "\n")
    if data.tokenizer_type == "char":
        tokenizer = build_character_tokenizer(text)
    else:
        tokenizer = load_tokenizer(read_tokenizer(data, data_dir), data.tokenizer_path or "")
    return tokenizer.encode(text), tokenizer
