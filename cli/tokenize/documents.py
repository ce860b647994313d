"""Documents of text files and JSON lines, one after the other, in constant memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from services.corpora.binary_format import SUFFIXES
from services.errors import Refused
from services.input_files import open_input_file
from services.printable import one_line, printable_path

DOCUMENT_BYTES = 16 << 20
"""Longest document. The `tokenizers` library needs about 120 bytes for each byte of a document, and a document can't be
cut: ids near the cut would differ."""
_PIECE_BYTES = 1 << 20
_JSON_LINES = ".jsonl"
_TEXT = "text"
_SPLIT = "split it"
_SEPARATE = "separate its documents, see --document-separator"


class Document(NamedTuple):
    """A text that is encoded by itself.

    Attributes:
        text: the text, not empty.
        place: where it is, for errors.
    """

    text: str
    place: str


class Documents:
    """Documents of some files, in order.

    A file `*.jsonl` has a JSON object with a text under the key `text` in each line. Any other file is one document, or
    several with a separator between them. Empty documents are left out.

    Args:
        paths: the files.
        separator: text between the documents of a file; it belongs to none. None if each file is one.

    Attributes:
        total_bytes: size of all files.
        read_bytes: how much of them was read.

    Raises:
        Refused: a file is missing, is no regular file, can't be read, or is too long for one document.
    """

    def __init__(self, paths: Sequence[Path], separator: str | None) -> None:
        self._paths = paths
        self._separator = None if separator is None else separator.encode()
        self.read_bytes = self.total_bytes = 0
        for path in paths:
            with open_input_file("", path) as file:
                size_bytes = file.seek(0, 2)
            if path.suffix.lower() in SUFFIXES:  # small ids without a high bit are UTF-8
                raise Refused(
                    f"{printable_path(path)}: is a file of token ids by its name, expected texts; give it as "
                    "training_config.data_path, or rename it"
                )
            if separator is None and path.suffix.lower() != _JSON_LINES:
                _check_length(size_bytes, printable_path(path), _SEPARATE)
            self.total_bytes += size_bytes

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents.

        Raises:
            Refused: a file is not UTF-8 or no JSON lines, or a document is longer than `DOCUMENT_BYTES`.
        """
        for path in self._paths:
            with open_input_file("", path) as file:
                if path.suffix.lower() == _JSON_LINES:
                    yield from self._lines(file, printable_path(path))
                else:
                    yield from self._parts(file, printable_path(path))

    def _lines(self, file: BinaryIO, name: str) -> Iterator[Document]:
        """Yield the texts of JSON lines (Refused)."""
        number = 0
        while line := file.readline(2 * DOCUMENT_BYTES):  # an escape such as \\n has two bytes for one
            number += 1
            place = f"{name}: line {number}"
            self.read_bytes += len(line)
            if len(line) == 2 * DOCUMENT_BYTES:
                _check_length(len(line), place, _SPLIT)
            if line.isspace():
                continue
            text = _text_of(line, place)
            _check_length(len(text.encode()), place, _SPLIT)
            if text:
                yield Document(text, place)

    def _parts(self, file: BinaryIO, name: str) -> Iterator[Document]:
        """Yield the texts between separators (Refused)."""
        rest, start, number = b"", 0, 1
        while piece := file.read(_PIECE_BYTES):
            self.read_bytes += len(piece)
            rest += piece
            if self._separator is not None:
                *complete, rest = rest.split(self._separator)
                for part in complete:
                    yield from _decoded(part, start, f"{name}: document {number}")
                    start += len(part) + len(self._separator)
                    number += 1
            _check_length(len(rest), f"{name}: document {number}", _SPLIT)
        yield from _decoded(rest, start, f"{name}: document {number}")


def _decoded(part: bytes, start: int, place: str) -> Iterator[Document]:
    """Yield a document, unless it is empty (Refused)."""
    _check_length(len(part), place, _SPLIT)
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        raise Refused(f"{place}: not UTF-8 at byte {start + error.start} of the file; convert it") from None
    if text:
        yield Document(text, place)


def _text_of(line: bytes, place: str) -> str:
    """Return the text of a JSON line (Refused)."""
    try:
        record = json.loads(line)
    except UnicodeDecodeError:
        raise Refused(f"{place}: not UTF-8; convert the file") from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"{place}: not JSON ({one_line(str(error), 100)}); correct it") from None
    text = record.get(_TEXT) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise Refused(f'{place}: has no text, expected an object such as {{"{_TEXT}": "..."}}; correct it')
    if not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text):
        raise Refused(f"{place}: has half of a surrogate pair, which is no character; correct it")
    return text


def _check_length(size_bytes: int, place: str, fix: str) -> None:
    if size_bytes > DOCUMENT_BYTES:
        raise Refused(
            f"{place}: more than {DOCUMENT_BYTES >> 20} MiB, which no document may have, since cutting it would change "
            f"its ids; {fix}"
        )
