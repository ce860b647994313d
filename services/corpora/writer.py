"""Writing of files of token ids in pieces: binary ones with their sidecars, and tt-train's YAML."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from services.corpora.block_digest import BlockDigest
from services.corpora.id_text import ID_TEXT_BYTES
from services.corpora.new_file import new_file
from services.corpora.sidecar import Dtype, TokenSidecar, sidecar_path
from services.errors import Refused
from services.printable import printable_path

_IDS_PER_LINE = 20
_LENGTH_DIGITS = 20


class TokenFileWriter:
    """A file of ids that is being written; see `new_token_file`.

    Attributes:
        count: number of ids so far.
        largest_id: largest of them; -1 without any.
        sidecar: description of the complete file, once it is complete.
    """

    def __init__(self, file: BinaryIO, dtype: Dtype, digest: BlockDigest) -> None:
        self._file = file
        self._dtype = dtype
        self._digest = digest
        self.largest_id, self._largest_at = -1, 0
        self.count = 0
        self.sidecar: TokenSidecar

    def write(self, ids: npt.NDArray[np.uint32]) -> None:
        """Append ids.

        Raises:
            OSError: the disk is full or failed.
            ValueError: an id doesn't fit into the type.
        """
        if not ids.size:
            return
        largest = int(ids.max())
        if largest > np.iinfo(self._dtype).max:
            raise ValueError(f"id {largest} at position {self.count + int(ids.argmax())} is no {self._dtype}")
        if largest > self.largest_id:
            self.largest_id, self._largest_at = largest, self.count + int(ids.argmax())
        data = ids.astype(np.dtype(self._dtype).newbyteorder("<")).tobytes()
        self._file.write(data)
        self._digest.update(data)
        self.count += ids.size

    def finish(self, tokenizer_vocab_size: int | None, tokenizer_sha256: str | None) -> TokenSidecar:
        """Return the description of what was written, at least one id."""
        self._file.flush()
        sha256, block_sha256 = self._digest.finish()
        self.sidecar = TokenSidecar(
            dtype=self._dtype,
            offset_bytes=0,
            count=self.count,
            largest_id=self.largest_id,
            largest_id_position=self._largest_at,
            file_bytes=self._digest.size_bytes,
            modified_ns=os.fstat(self._file.fileno()).st_mtime_ns,
            sha256=sha256,
            block_sha256=block_sha256,
            tokenizer_vocab_size=tokenizer_vocab_size,
            tokenizer_sha256=tokenizer_sha256,
        )
        return self.sidecar


@contextmanager
def new_token_file(
    path: Path,
    dtype: Dtype,
    *,
    tokenizer_vocab_size: int | None = None,
    tokenizer_sha256: str | None = None,
) -> Iterator[TokenFileWriter]:
    """Give a writer; file and sidecar appear when the block ends, and neither does when it fails.

    Args:
        path: the file, which is replaced if it exists.
        dtype: type of the ids.
        tokenizer_vocab_size: number of ids of the tokenizer that made them.
        tokenizer_sha256: SHA-256 of its `tokenizer.json`.

    Raises:
        Refused: the folder is missing or not writable.
        NotYet: the disk is full or failed.
    """
    with (
        BlockDigest() as digest,
        new_file(sidecar_path(path)) as beside,
        new_file(path) as file,
    ):
        writer = TokenFileWriter(file, dtype, digest)
        yield writer
        sidecar = writer.finish(tokenizer_vocab_size, tokenizer_sha256)
        beside.write(sidecar.model_dump_json(exclude_none=True).encode() + b"\n")
        beside.flush()  # a full disk shows here, before the file gets its name


class TokenYamlWriter:
    """A YAML file of ids that is being written; see `new_token_yaml`.

    Attributes:
        count: number of ids so far.
        largest_id: largest of them; -1 without any.
    """

    def __init__(self, file: BinaryIO, place: str, tokenizer_vocab_size: int) -> None:
        self._file = file
        self._place = place
        self.count = 0
        self.largest_id = -1
        file.write(b"tokenizer_vocab_size: %d\ndata_length: " % tokenizer_vocab_size)
        # Readers in pieces need the length before the ids. It is known at the end, so it is written into these spaces.
        self._length_at = file.tell()
        file.write(b" " * _LENGTH_DIGITS + b"\ntokens: [")

    def write(self, ids: npt.NDArray[np.uint32]) -> None:
        """Append ids.

        Raises:
            OSError: the disk is full or failed.
            Refused: the file gets larger than a job can read.
        """
        if not ids.size:
            return
        words = [str(each) for each in ids.tolist()]
        lines = (
            ", ".join(words[start : start + _IDS_PER_LINE]) for start in range(0, ids.size, _IDS_PER_LINE)
        )
        self._file.write((",\n  " if self.count else "").encode() + ",\n  ".join(lines).encode())
        self.count += ids.size
        self.largest_id = max(self.largest_id, int(ids.max()))
        if self._file.tell() > ID_TEXT_BYTES:
            raise Refused(
                f"{self._place}: {self.count} ids take more than the {ID_TEXT_BYTES >> 30} GiB that a file of YAML may "
                "have; give a name that ends in .bin, or fewer texts"
            )

    def finish(self) -> None:
        """Close the list, and write how many ids it has."""
        self._file.write(b"]\n")
        self._file.seek(self._length_at)
        self._file.write(f"{self.count:{_LENGTH_DIGITS}}".encode())


@contextmanager
def new_token_yaml(path: Path, *, tokenizer_vocab_size: int) -> Iterator[TokenYamlWriter]:
    """Give a writer; the file appears when the block ends, and does not when it fails.

    Args:
        path: the file, which is replaced if it exists.
        tokenizer_vocab_size: number of ids of the tokenizer that made them.

    Raises:
        Refused: the folder is missing or not writable.
        NotYet: the disk is full or failed.
    """
    with new_file(path) as file:
        writer = TokenYamlWriter(file, printable_path(path), tokenizer_vocab_size)
        yield writer
        writer.finish()
