"""Corpora and tokenizers: the built-in text, and files that are verified against the job."""

from __future__ import annotations

import codecs
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from services.config.job_parts import CorpusFile, DataConfig
from services.corpora.reading_progress import report_reading
from services.corpora.token_file import TokenFile
from services.errors import Refused
from services.input_files import NoSuchFile, open_input_file
from services.printable import printable_path

PYTHON_REFERENCE = "builtin:python-reference"
"""Name of the text of Python's language reference, which every CPython contains: English prose and code."""

CORPUS_BYTES = 16 << 30
"""Largest text: workers read all of it into memory."""
_BLOCK_BYTES = 1 << 20


def python_reference_text() -> str:
    """Return the topics of `pydoc_data.topics`, sorted by name and joined by line breaks.

    The text differs a little between Python versions, so jobs name its sha256 like that of any file.
    """
    from pydoc_data.topics import topics  # half a megabyte, so loaded only on demand

    return "\n".join(topics[name] for name in sorted(topics))


def read_text(file: CorpusFile, data_dir: Path | None = None) -> str:
    """Return a text of a job's corpus, verified by its sha256, with line ends as in Unix.

    Args:
        file: file of the corpus, of kind `text`.
        data_dir: folder of this host in which a file of the same name is taken, if the job's path doesn't exist.

    Raises:
        Refused: there is no such file here, its bytes differ from what the job names, or it is not UTF-8.
    """
    if file.path == PYTHON_REFERENCE:
        content = python_reference_text().encode()
        _check_sha256(
            content,
            file.sha256,
            "data_path",
            file.path,
            "run the Python version that the job was submitted from",
        )
    else:
        content = _read(file.path, file.sha256, "data_path", data_dir)
    try:
        return with_unix_line_ends(content.decode())
    except UnicodeDecodeError as error:
        raise Refused(
            f"training_config.data_path: {printable_path(file.path)} is not UTF-8 at byte {error.start}; convert it"
        ) from None


def open_token_file(file: CorpusFile, data_dir: Path | None = None) -> TokenFile:
    """Return a file of token ids of a job's corpus, opened by its sidecar.

    Args:
        file: file of the corpus, of kind `tokens`.
        data_dir: folder of this host in which a file of the same name is taken, if the job's path doesn't exist.

    Raises:
        Refused: there is no such file here, or it is not the one that the job names.
    """
    place = _find_file(file.path, "data_path", data_dir)
    return TokenFile.open(place, "training_config.data_path", file.identity)


def with_unix_line_ends(text: str) -> str:
    """Return a text as it is tokenized: CR LF is one line end."""
    return text.replace("\r\n", "\n")


def read_tokenizer(data: DataConfig, data_dir: Path | None = None) -> bytes:
    """Return the `tokenizer.json` of a job with `tokenizer_type: bpe`, verified by its sha256.

    Args:
        data: corpus and tokenizer of the job.
        data_dir: folder of this host in which a file of the same name is taken, if the job's path doesn't exist.

    Raises:
        Refused: there is no such file here, or its bytes differ from what the job names.
        ValueError: the job's tokenizer is `char`.
    """
    if data.tokenizer_path is None or data.tokenizer_sha256 is None:
        raise ValueError(f"a {data.tokenizer_type} tokenizer has no file")
    return _read(data.tokenizer_path, data.tokenizer_sha256, "tokenizer_path", data_dir)


def _read(path: str, sha256: str, key: str, data_dir: Path | None) -> bytes:
    place = _find_file(path, key, data_dir)
    try:
        with open_input_file(f"training_config.{key}", place, CORPUS_BYTES) as file:
            content = file.read()
    except OSError as error:
        raise Refused(
            f"training_config.{key}: {printable_path(place)} can't be read ({error.strerror}); make it readable"
        ) from None
    _check_sha256(content, sha256, key, str(place), "copy the file that the job was submitted with")
    return content


def _find_file(path: str, key: str, data_dir: Path | None) -> Path:
    """Return where a file of the job is on this host (Refused)."""
    places = [Path(path)] + ([data_dir / Path(path).name] if data_dir else [])
    for place in places:
        try:
            open_input_file(f"training_config.{key}", place).close()
        except NoSuchFile:
            continue
        return place
    listed = ", ".join(printable_path(place) for place in places)
    raise Refused(
        f"training_config.{key}: no such file on this host (looked at {listed}); "
        "copy it here or give the worker its folder with --data"
    )


def _check_sha256(content: bytes, sha256: str, key: str, place: str, fix: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise Refused(
            f"training_config.{key}: {printable_path(place)} has sha256 {_start_of(found)}, the job expects "
            f"{_start_of(sha256)}; {fix}"
        )


def _start_of(sha256: str) -> str:
    """Return enough of a hash to compare by eye."""
    return f"{sha256[:16]}..."


@dataclass(frozen=True)
class TextSummary:
    """What a job needs to know of a text.

    Attributes:
        sha256: sha256 of its bytes.
        characters: number of characters, CR LF counted as one.
        alphabet: its characters.
    """

    sha256: str
    characters: int
    alphabet: frozenset[str]


def summarize_text(text: str) -> TextSummary:
    """Return the summary of a text with Unix line ends."""
    return TextSummary(hashlib.sha256(text.encode()).hexdigest(), len(text), frozenset(text))


def summarize_text_file(path: Path, field: str) -> TextSummary:
    """Return the summary of a text file, which is read in blocks.

    Raises:
        Refused: the file can't be read, is no regular file, is larger than `CORPUS_BYTES`, or is not UTF-8.
    """
    digest, characters, alphabet = hashlib.sha256(), 0, set[str]()
    try:
        with open_input_file(field, path, CORPUS_BYTES) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            for text in _decoded_blocks(file, digest.update):
                report_reading(path, file.tell(), size_bytes)
                characters += len(text)
                alphabet.update(text)
    except OSError as error:
        raise Refused(
            f"{field}: {printable_path(path)} can't be read ({error.strerror}); make it readable"
        ) from None
    except UnicodeDecodeError:
        raise Refused(f"{field}: {printable_path(path)} is not UTF-8, expected a text; convert it") from None
    return TextSummary(digest.hexdigest(), characters, frozenset(alphabet))


def _decoded_blocks(file: BinaryIO, on_bytes: Callable[[bytes], None]) -> Iterator[str]:
    """Yield a text block by block, with Unix line ends; `on_bytes` is called with the bytes of each block before."""
    decoder, carriage_return = codecs.getincrementaldecoder("utf-8")(), ""
    while block := file.read(_BLOCK_BYTES):
        on_bytes(block)
        text = carriage_return + decoder.decode(block)
        carriage_return = "\r" if text.endswith("\r") else ""  # its LF may begin the next block
        yield with_unix_line_ends(text[: len(text) - len(carriage_return)])
    yield carriage_return + decoder.decode(b"", final=True)
