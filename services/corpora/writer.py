"""Writing of a file of token ids in pieces, with its sidecar."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from services.corpora.block_digest import BlockDigest
from services.corpora.new_file import new_file
from services.corpora.sidecar import Dtype, TokenSidecar, sidecar_path


class TokenFileWriter:
    """A file of ids that is being written; see `new_token_file`.

    Attributes:
        count: number of ids so far.
        sidecar: description of the complete file, once it is complete.
    """

    def __init__(self, file: BinaryIO, dtype: Dtype, digest: BlockDigest) -> None:
        self._file = file
        self._dtype = dtype
        self._digest = digest
        self._largest, self._largest_at = -1, 0
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
        if largest > self._largest:
            self._largest, self._largest_at = largest, self.count + int(ids.argmax())
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
            largest_id=self._largest,
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
