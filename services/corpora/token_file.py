"""Files of token ids: opened by their sidecar alone, and verified block by block as they are read.

A file that may have changed since it was described or verified on this host is verified as a whole when it is opened.

Ids are read at their position (`pread`), not through a memory map: the memory of the process stays constant whatever is
read, and a file that gets shorter meanwhile is an error with a text, where a map ends the process by SIGBUS.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from services.corpora import binary_format
from services.corpora.block_digest import BLOCK_BYTES
from services.corpora.conversion import TEXT_SUFFIXES, converted
from services.corpora.description import describe
from services.corpora.reading_progress import report_reading
from services.corpora.sidecar import ITEM_BYTES, TokenSidecar, load_sidecar, store_sidecar
from services.corpora.verified import is_unchanged, note_verified
from services.errors import Refused
from services.input_files import open_input_file
from services.printable import printable_path

SUFFIXES = (*TEXT_SUFFIXES, *binary_format.SUFFIXES)
"""Suffixes of files of token ids."""
_MAX_THREADS = 4
"""Largest number of threads that verify a file: hashing in each gives 1 to 2 GB/s, more than most disks."""
_PIECE_BLOCKS = 16
"""Number of blocks that a thread verifies before the next report of progress."""
_DIGEST_CHARACTERS = 12
"""Length to which errors shorten a SHA-256."""


def is_token_file(path: Path) -> bool:
    """Return whether a path names a file of token ids, by its suffix."""
    return path.suffix.lower() in SUFFIXES


def describe_token_file(path: Path, field: str) -> TokenSidecar:
    """Return the sidecar of a file of token ids; make it if the file has none, which reads the whole file once.

    Args:
        path: the file. A YAML or CSV file is converted first; the sidecar is that of the converted file.
        field: dotted name of the field that names the file, for errors.

    Raises:
        Refused: the file is missing, of another kind, cut off, or differs from the sidecar that it has.
        NotYet: the disk is full.
    """
    path = converted(path, field)
    place = f"{field}: {printable_path(path)}"
    with open_input_file(field, path) as file:
        known = load_sidecar(path)
        status = os.fstat(file.fileno())
        if known is not None:
            _check_size(known, status.st_size, place)
            if is_unchanged(path, known, status):
                note_verified(path, known.identity, status)
                return known
        sidecar = describe(file, path, known, place)
        if known is not None and sidecar.identity != known.identity:
            block = _first_difference(sidecar, known)
            raise _changed(place, block, sidecar.block_hash(block), known)
    store_sidecar(path, sidecar)
    note_verified(path, sidecar.identity, status)
    return sidecar


class TokenFileDamaged(Refused):
    """A file of token ids whose bytes are not those that its sidecar describes, or can't be read.

    Args:
        text: the line for people.
        path: the file.
        inode: number of the file on its disk: a file that has replaced it has another one.
    """

    def __init__(self, text: str, path: Path, inode: int) -> None:
        super().__init__(text)
        self.path = path
        self.inode = inode


class TokenFile:
    """Token ids of one file.

    Attributes:
        path: the binary file that is read. For a YAML or CSV file it is the converted one.
        sidecar: description of that file.
        identity: SHA-256 that stands for the ids; a job names it.
        count: number of ids.
        largest_id: largest of the ids.
        tokenizer_vocab_size: number of ids of the tokenizer that made them; None if unknown.
    """

    def __init__(self, path: Path, file: BinaryIO, sidecar: TokenSidecar, place: str) -> None:
        """Use `open`."""
        self.path = path
        self.sidecar = sidecar
        self.identity = sidecar.identity
        self.count = sidecar.count
        self.largest_id = sidecar.largest_id
        self.tokenizer_vocab_size = sidecar.tokenizer_vocab_size
        self._file = file
        self._place = place
        self._dtype = np.dtype(sidecar.dtype).newbyteorder("<")
        self._verified = bytearray(-(-sidecar.file_bytes // BLOCK_BYTES))
        self._changed_ns = os.fstat(file.fileno()).st_mtime_ns

    @classmethod
    def open(cls, path: Path, field: str, identity: str | None = None) -> TokenFile:
        """Open a file of token ids, by its sidecar alone if it has one.

        A file that is not, by its size, time and inode, the one that was described or verified on this host is verified
        as a whole first.

        Args:
            path: the file, of any size.
            field: dotted name of the field that names the file, for errors.
            identity: identity that a job names; None for that of the file as it is now.

        Raises:
            Refused: the file is missing or unusable, or has another identity.
            TokenFileDamaged: it has changed, and has another size or another block than its sidecar says.
            NotYet: the disk is full, if a sidecar or a converted file has to be written.
        """
        path = converted(path, field)
        place = f"{field}: {printable_path(path)}"
        file = open_input_file(field, path)
        try:
            sidecar = load_sidecar(path)
            if sidecar is None or identity is None:
                sidecar = describe_token_file(path, field)
            if identity is not None and sidecar.identity != identity:
                found, expected = sidecar.identity[:16], identity[:16]
                raise Refused(
                    f"{place}: its sidecar has identity {found}..., the job expects {expected}...; "
                    "copy the file that the job was submitted with, and its sidecar"
                )
            status = os.fstat(file.fileno())
            try:
                _check_size(sidecar, status.st_size, place)
            except Refused as error:
                raise TokenFileDamaged(str(error), path, status.st_ino) from None
            opened = cls(path, file, sidecar, place)
            if not is_unchanged(path, sidecar, status):
                opened.verify()
            note_verified(path, sidecar.identity, status)
        except BaseException:
            file.close()
            raise
        return opened

    def read(self, start: int, count: int) -> npt.NDArray[np.uint32]:
        """Return `count` ids from position `start` on, uint32; safe to call from several threads.

        Raises:
            TokenFileDamaged: a block of the file differs from the sidecar, or can't be read.
            ValueError: the file has no such positions.
        """
        if start < 0 or count < 0 or start + count > self.count:
            raise ValueError(f"ids {start} to {start + count} of {self.count}")
        first = self.sidecar.offset_bytes + start * self._dtype.itemsize
        last = first + count * self._dtype.itemsize
        changed_ns = os.fstat(self._file.fileno()).st_mtime_ns
        if changed_ns != self._changed_ns:  # what was verified may not be there any longer
            self._verified = bytearray(len(self._verified))
            self._changed_ns = changed_ns
        for block in range(first // BLOCK_BYTES, -(-last // BLOCK_BYTES)):
            if not self._verified[block]:
                self._verify(block)
                self._verified[block] = 1
        return np.frombuffer(self._read(first, last - first), self._dtype).astype(np.uint32)

    def verify(self) -> None:
        """Verify all blocks, in constant memory on a few threads; `watch_reading` sees how far that is.

        Raises:
            TokenFileDamaged: the first block that differs from the sidecar, or can't be read.
        """
        threads = min(_MAX_THREADS, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads, "verify") as pool:
            pieces: deque[Future[int]] = deque()
            try:
                for first in range(0, len(self._verified), _PIECE_BLOCKS):
                    if len(pieces) == 2 * threads:
                        self._report_verified(pieces.popleft().result())
                    pieces.append(pool.submit(self._verify_piece, first))
                for piece in pieces:
                    self._report_verified(piece.result())
            finally:
                pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _verify_piece(self, first: int) -> int:
        """Verify `_PIECE_BLOCKS` blocks; return the number of the block after them."""
        after = min(first + _PIECE_BLOCKS, len(self._verified))
        for block in range(first, after):
            self._verify(block)
            self._verified[block] = 1
        return after

    def _report_verified(self, blocks: int) -> None:
        size_bytes = self.sidecar.file_bytes
        report_reading(self.path, min(blocks * BLOCK_BYTES, size_bytes), size_bytes)

    def _verify(self, block: int) -> None:
        start = block * BLOCK_BYTES
        content = self._read(start, min(BLOCK_BYTES, self.sidecar.file_bytes - start))
        found = hashlib.sha256(content).hexdigest()
        if found != self.sidecar.block_hash(block):
            raise self._damaged(str(_changed(self._place, block, found, self.sidecar)))
        ids = np.frombuffer(content, self._dtype, offset=0 if block else self.sidecar.offset_bytes)
        if ids.size and not 0 <= ids.min() <= ids.max() <= self.largest_id:
            odd = int(np.argmax((ids < 0) | (ids > self.largest_id)))
            position = max(0, start - self.sidecar.offset_bytes) // ids.itemsize + odd
            raise Refused(
                f"{self._place}: id {ids[odd]} at position {position}, its sidecar says at most {self.largest_id}; "
                "remove the sidecar and submit again"
            )

    def _read(self, start: int, size_bytes: int) -> bytes:
        """Return bytes of the file (TokenFileDamaged)."""
        content = b""
        while len(content) < size_bytes:
            try:
                piece = os.pread(self._file.fileno(), size_bytes - len(content), start + len(content))
            except OSError as error:
                reason = f"can't be read ({error.strerror}); repair its disk"
                raise self._damaged(f"{self._place}: {reason}") from None
            if not piece:
                raise self._damaged(
                    f"{self._place}: ends at byte {start + len(content)}, expected {self.sidecar.file_bytes} bytes; "
                    "it got shorter while it was used, copy it again"
                )
            content = content + piece if content else piece
        return content

    def _damaged(self, text: str) -> TokenFileDamaged:
        return TokenFileDamaged(text, self.path, os.fstat(self._file.fileno()).st_ino)


def refuse_ids_beyond(sidecar: TokenSidecar, vocab_size: int, field: str, path: str, owner: str) -> None:
    """Check that all ids of a file belong to a vocabulary.

    Args:
        sidecar: description of the file.
        vocab_size: number of ids of the vocabulary.
        field: dotted name of the field that names the file.
        path: the file as people know it.
        owner: what has the vocabulary, such as "transformer_config.vocab_size".

    Raises:
        Refused: an id is too large; the line has its value and position.
    """
    if sidecar.largest_id >= vocab_size:
        raise Refused(
            f"{field}: {printable_path(path)} has id {sidecar.largest_id} at position {sidecar.largest_id_position}, "
            f"expected ids below {vocab_size} ({owner}); tokenize the text with that vocabulary, or make it larger"
        )


def _check_size(sidecar: TokenSidecar, size_bytes: int, place: str) -> None:
    """Check that a file has the size that its sidecar says (Refused)."""
    if size_bytes != sidecar.file_bytes:
        raise Refused(
            f"{place}: {size_bytes} bytes, its sidecar says {sidecar.file_bytes}; copy the file again, or remove its "
            "sidecar and submit again"
        )


def _changed(place: str, block: int, sha256: str, sidecar: TokenSidecar) -> Refused:
    """Return the error about a block that has another SHA-256 than the sidecar says."""
    item_bytes = ITEM_BYTES[sidecar.dtype]
    first, last = (
        min(max(0, at * BLOCK_BYTES - sidecar.offset_bytes) // item_bytes, sidecar.count)
        for at in (block, block + 1)
    )
    found, expected = (each[:_DIGEST_CHARACTERS] for each in (sha256, sidecar.block_hash(block)))
    return Refused(
        f"{place}: block {block} (ids {first} to {last - 1}) has sha256 {found}..., its sidecar says {expected}...; "
        "copy the file again, or remove its sidecar and submit again"
    )


def _first_difference(one: TokenSidecar, other: TokenSidecar) -> int:
    """Return the first block whose hashes differ in two descriptions of files of one size."""
    blocks = -(-one.file_bytes // BLOCK_BYTES)
    return next((index for index in range(blocks) if one.block_hash(index) != other.block_hash(index)), 0)
