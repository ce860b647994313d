"""Files of token ids written as text, converted once into binary ones in the cache.

The cache's name for one is the SHA-256 of the text, so a changed text is another file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

from services.corpora.cache import make_cache_folder
from services.corpora.id_text import IdText
from services.corpora.sidecar import load_sidecar
from services.corpora.writer import new_token_file
from services.errors import Refused
from services.input_files import open_input_file
from services.printable import printable_path

TEXT_SUFFIXES = (".yaml", ".yml", ".csv")
ID_TEXT_BYTES = 16 << 30
"""Largest such file: it is hashed at each opening."""
_BLOCK_BYTES = 1 << 20


def converted(path: Path, field: str) -> Path:
    """Return the binary file with the ids of a text file, made if it is missing, or the path of any other file.

    Args:
        path: a file of token ids.
        field: dotted name of the field that names it, for errors.

    Raises:
        Refused: the file can't be read, or has something else than ids.
        NotYet: the disk is full.
    """
    suffix = path.suffix.lower()
    if suffix not in TEXT_SUFFIXES:
        return path
    place = f"{field}: {printable_path(path)}"
    with open_input_file(field, path, ID_TEXT_BYTES) as file:
        binary = make_cache_folder("tokens") / f"{_hash(file, place)}.u32.bin"
        if not _is_complete(binary):
            file.seek(0)
            _convert(file, suffix != ".csv", binary, place)
    return binary


def _is_complete(binary: Path) -> bool:
    """Return whether a conversion is there, with its sidecar."""
    try:
        status = binary.stat()
        sidecar = load_sidecar(binary)
    except (OSError, Refused):
        return False
    return sidecar is not None and sidecar.fits(status)


def _convert(file: BinaryIO, is_yaml: bool, binary: Path, place: str) -> None:
    text = IdText(file, is_yaml, place)
    with new_token_file(binary, "uint32", tokenizer_vocab_size=text.tokenizer_vocab_size) as writer:
        for ids in text.pieces():
            writer.write(ids)


def _hash(file: BinaryIO, place: str) -> str:
    digest = hashlib.sha256()
    try:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    except OSError as error:
        raise Refused(f"{place}: can't be read ({error.strerror}); make it readable") from None
    return digest.hexdigest()
