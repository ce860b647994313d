"""One upload into the folder of files, under a temporary name until the file is complete and verified."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from protos.files_pb2 import FileRef
from services.durable_files import sync_folder
from services.errors import Failed, Refused
from services.files.errors import FileDamaged, NoRoom
from services.instrumentation.failpoints import hit_failpoint
from services.protocol.file_refs import MAX_PIECE_BYTES

HASH_BYTES = 64 << 20
"""Number of bytes that `Upload.hash_on` reads at once."""


class Upload:
    """One upload; a context manager that keeps what was written if it is left before `finish`.

    Args:
        ref: the file.
        file: the part of it that is here, locked.
        part: path of the part.
        path: path of the complete file.
        with_room: does work on the disk that writes so many bytes, see `FileStore.with_room`.

    Attributes:
        size: number of bytes that are here.
    """

    def __init__(
        self,
        ref: FileRef,
        file: IO[bytes],
        part: Path,
        path: Path,
        with_room: Callable[[Callable[[], None], int], None],
    ) -> None:
        self._ref, self._file, self._part, self._path = ref, file, part, path
        self._with_room = with_room
        self._digest, self._hashed_bytes = hashlib.sha256(), 0
        self.size = file.seek(0, os.SEEK_END)

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; what was written stays for a later upload."""
        with suppress(OSError):  # what is still in the buffer of a full disk's file is sent again
            self._file.close()

    def write(self, data: bytes) -> bool:
        """Append a piece.

        Returns:
            Whether the file is still wanted. If another upload has completed it, what is here is removed.

        Raises:
            Refused: the file gets longer than its reference says.
            NoRoom: the disk is full, and nothing on it can go.
            Failed: the disk failed in another way.
        """
        if self.size + len(data) > self._ref.size:
            raise Refused(
                f"file {self._ref.sha256[:12]}: more than the {self._ref.size} bytes that its reference says"
            )
        with explain_disk(self._ref):
            self._with_room(lambda: self._append(data), MAX_PIECE_BYTES)
        if self._hashed_bytes == self.size:
            self._digest.update(data)
            self._hashed_bytes += len(data)
        self.size += len(data)
        with explain_disk(self._ref), suppress(FileNotFoundError):
            if self._path.stat().st_size == self._ref.size:
                self._part.unlink(missing_ok=True)
                return False
        return True

    def _append(self, data: bytes) -> None:
        hit_failpoint("files.mid-write")
        try:
            self._file.write(data)
            self._file.flush()
        except OSError:
            self._file.truncate(self.size)  # a part of the piece may have been written
            raise

    def hash_on(self) -> bool:
        """Hash some more of what an earlier upload has written; return whether there may be more."""
        with explain_disk(self._ref):
            self._file.seek(self._hashed_bytes)
            end = min(self._hashed_bytes + HASH_BYTES, self.size)
            while self._hashed_bytes < end:
                data = self._file.read(MAX_PIECE_BYTES)
                if not data:
                    return False  # the file was cut by somebody else, which its SHA-256 tells
                self._digest.update(data)
                self._hashed_bytes += len(data)
        return self._hashed_bytes < self.size

    def finish(self, record: Callable[[], None] | None = None) -> None:
        """Verify the file, and return once it would survive a power cut.

        Args:
            record: optional callback, called when the file is verified, before it is complete.

        Raises:
            FileDamaged: bytes are missing, and those that are here stay; or they are not those of the reference.
            NoRoom: the disk is full, and nothing on it can go.
            Failed: the disk failed.
        """
        if self.size < self._ref.size:  # the peer may have died, which looks like the end of what it sends
            raise FileDamaged(
                f"file {self._ref.sha256[:12]}: {self.size} of {self._ref.size} bytes arrived; continue there"
            )
        while self.hash_on():
            pass
        if self._digest.hexdigest() != self._ref.sha256:
            self._part.unlink(missing_ok=True)
            raise FileDamaged(
                f"file {self._ref.sha256[:12]}: {self.size} bytes with SHA-256 {self._digest.hexdigest()[:12]} "
                f"arrived, expected {self._ref.size} bytes; send it again"
            )
        with explain_disk(self._ref):
            if record is not None:
                self._with_room(record, MAX_PIECE_BYTES)
            self._with_room(self._publish, MAX_PIECE_BYTES)

    def _publish(self) -> None:
        os.fsync(self._file.fileno())
        hit_failpoint("files.before-rename")
        self._part.rename(self._path)
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
