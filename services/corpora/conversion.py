"""Files of token ids written as text, converted once into binary ones in the cache.

The cache's name for one is the SHA-256 of the text, so a changed text is another file.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from services.corpora.cache import cache_folder, make_cache_folder
from services.corpora.id_text import ID_TEXT_BYTES, IdText
from services.corpora.reading_progress import report_reading
from services.corpora.sidecar import SUFFIX, load_sidecar, sidecar_path
from services.corpora.writer import new_token_file
from services.errors import Refused
from services.input_files import open_input_file
from services.printable import printable_path

TEXT_SUFFIXES = (".yaml", ".yml", ".csv")
CACHED_BYTES = 64 << 30
"""Largest size of all conversions. Those unused for the longest time make room for a new one."""
_BLOCK_BYTES = 1 << 20
_FOLDER = "tokens"


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
        binary = make_cache_folder(_FOLDER) / f"{_hash(file, path, place)}.u32.bin"
        if not _is_complete(binary):
            file.seek(0)
            _convert(file, path, binary, place)
            _make_room(binary)
    with suppress(OSError):  # another process may have made room just now, which opening says
        os.utime(sidecar_path(binary))  # the time of the last use
    return binary


def is_conversion(binary: Path) -> bool:
    """Return whether a path is that of a converted file."""
    try:
        return binary.parent == cache_folder(_FOLDER)
    except Refused:  # there is no cache
        return False


def remove_conversion(binary: Path) -> bool:
    """Remove a converted file that is damaged, so that it is made again; return whether the path is that of one."""
    if not is_conversion(binary):
        return False
    sidecar_path(binary).unlink(missing_ok=True)
    binary.unlink(missing_ok=True)
    return True


def _is_complete(binary: Path) -> bool:
    """Return whether a conversion is there, with its sidecar."""
    try:
        status = binary.stat()
        sidecar = load_sidecar(binary)
    except (OSError, Refused):
        return False
    return sidecar is not None and sidecar.fits(status)


def _convert(file: BinaryIO, path: Path, binary: Path, place: str) -> None:
    text = IdText(file, path.suffix.lower() != ".csv", place)
    size_bytes = os.fstat(file.fileno()).st_size
    with new_token_file(binary, "uint32", tokenizer_vocab_size=text.tokenizer_vocab_size) as writer:
        for ids in text.pieces():
            writer.write(ids)
            report_reading(path, file.tell(), size_bytes)


def _make_room(newest: Path) -> None:
    """Remove conversions that were not used for the longest time. Processes that have one open can read on."""
    left_bytes = CACHED_BYTES
    for sidecar in sorted(newest.parent.glob(f"*{SUFFIX}"), key=_last_use_ns, reverse=True):
        binary = sidecar.with_name(sidecar.name.removesuffix(SUFFIX))
        with suppress(OSError):
            left_bytes -= binary.stat().st_size
            if left_bytes < 0 and binary != newest:
                sidecar.unlink()
                binary.unlink()


def _last_use_ns(sidecar: Path) -> int:
    try:
        return sidecar.stat().st_mtime_ns
    except OSError:
        return 0


def _hash(file: BinaryIO, path: Path, place: str) -> str:
    digest, size_bytes = hashlib.sha256(), os.fstat(file.fileno()).st_size
    try:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            report_reading(path, file.tell(), size_bytes)
    except OSError as error:
        raise Refused(f"{place}: can't be read ({error.strerror}); make it readable") from None
    return digest.hexdigest()
