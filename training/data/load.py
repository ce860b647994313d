"""Opens the corpus of a job. Texts are read and tokenized; token ids stay in their files."""

from __future__ import annotations

from pathlib import Path

from services.config.corpus import open_token_file, read_text, read_tokenizer
from services.config.job_parts import CorpusFile, DataConfig
from training.data.tokenizer import Tokenizer, build_character_tokenizer, load_tokenizer
from training.data.tokens import TokenArray, TokenSource


def load_corpus(data: DataConfig, data_dir: Path | None) -> tuple[list[TokenSource], Tokenizer | None]:
    """Return the token ids of each file of the corpus, and their tokenizer if the job has one.

    Args:
        data: data config of the job.
        data_dir: folder of this host that is searched for files missing at the job's path.

    Raises:
        Refused: a file is missing, is unusable, or has changed since the job was submitted.
    """
    texts = {file: read_text(file, data_dir) for file in data.files if file.kind == "text"}
    tokenizer = _load_tokenizer(data, frozenset().union(*texts.values()), data_dir)

    def source(file: CorpusFile) -> TokenSource:
        if tokenizer is None or file.kind == "tokens":
            return open_token_file(file, data_dir)
        return TokenArray(tokenizer.encode(texts[file]))

    return [source(file) for file in data.files], tokenizer


def load_job_tokenizer(data: DataConfig) -> Tokenizer | None:
    """Return the tokenizer of a job whose corpus is on this host; None if it has none.

    Raises:
        Refused: a file is missing, is unusable, or has changed since the job was resolved.
    """
    texts = [file for file in data.files if file.kind == "text" and data.tokenizer_type == "char"]
    alphabet = frozenset[str]().union(*(frozenset(read_text(file)) for file in texts))
    return _load_tokenizer(data, alphabet, None)


def _load_tokenizer(data: DataConfig, alphabet: frozenset[str], data_dir: Path | None) -> Tokenizer | None:
    match data.tokenizer_type:
        case "char":
            return build_character_tokenizer(alphabet)
        case "bpe":
            return load_tokenizer(read_tokenizer(data, data_dir), data.tokenizer_path or "")
        case "none":
            return None
