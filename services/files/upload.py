"""One upload into the folder of files, under a temporary name until the file is complete and verified."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from protos.files_pb2 import FileRef
from services.durable_files import sync_folder
from services.errors import Failed, Refused
from services.files.errors import FileDamaged, NoRoom
from services.instrumentation.failpoints import hit_failpoint
from services.protocol.file_refs import MAX_PIECE_BYTES


class Upload:
    """One upload; a context manager that keeps what was written if it is left before `finish`.

    Args:
        ref: the file.
        file: the temporary file, locked and at its end.
        partial: path of the temporary file.
        path: path of the complete file.
    """

    def __init__(self, ref: FileRef, file: IO[bytes], partial: Path, path: Path) -> None:
        self._ref, self._file, self._partial, self._path = ref, file, partial, path
        self._digest = hashlib.sha256()
        self.size = file.tell()
        file.seek(0)
        while data := file.read(MAX_PIECE_BYTES):
            self._digest.update(data)

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; what was written stays for a later upload."""
        with suppress(OSError):  # what is still in the buffer of a full disk's file is sent again
            self._file.close()

    def write(self, data: bytes) -> None:
        """Append a piece.

        Raises:
            Refused: the file gets longer than its reference says.
            NoRoom: the disk is full.
            Failed: the disk failed in another way.
        """
        if self.size + len(data) > self._ref.size:
            raise Refused(
                f"file {self._ref.sha256[:12]}: more than the {self._ref.size} bytes that its reference says"
            )
        with explain_disk(self._ref):
            hit_failpoint("files.mid-write")
            try:
                self._file.write(data)
                self._file.flush()
            except OSError:
                self._file.truncate(self.size)  # a part of the piece may have been written
                raise
        self._digest.update(data)
        self.size += len(data)

    def finish(self) -> None:
        """Verify the file, and return once it would survive a power cut.

        Raises:
            FileDamaged: bytes are missing, and those that are here stay; or they are not those of the reference.
            Failed: the disk failed.
        """
        if self.size < self._ref.size:  # the peer may have died, which looks like the end of what it sends
            raise FileDamaged(
                f"file {self._ref.sha256[:12]}: {self.size} of {self._ref.size} bytes arrived; continue there"
            )
        if self._digest.hexdigest() != self._ref.sha256:
            self._partial.unlink(missing_ok=True)
            raise FileDamaged(
                f"file {self._ref.sha256[:12]}: {self.size} bytes with SHA-256 {self._digest.hexdigest()[:12]} "
                f"arrived, expected {self._ref.size} bytes; upload it again"
            )
        with explain_disk(self._ref):
            os.fsync(self._file.fileno())
            hit_failpoint("files.before-rename")
            self._partial.rename(self._path)
            sync_folder(self._path.parent)


@contextmanager
def explain_disk(ref: FileRef) -> Iterator[None]:
    """Turn an OSError into one line about the file."""
    try:
        yield
    except OSError as error:
        kind = NoRoom if error.errno in (errno.ENOSPC, errno.EDQUOT) else Failed
        text = f"file {ref.sha256[:12]}: not stored: {error.strerror or error}; free some of the disk, or repair it"
        raise kind(text) from None
