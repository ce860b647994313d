"""A file that arrives, piece by piece, until it is complete and verified."""

from __future__ import annotations

import errno
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from protos.files_pb2 import FileRef
from services.durable_files import sync_folder
from services.errors import Failed, Refused
from services.files.errors import FileDamaged, NoRoom, WrongFile
from services.instrumentation.failpoints import hit_failpoint
from services.protocol.file_refs import MAX_PIECE_BYTES

HASH_BYTES = 64 << 20
"""Number of bytes that `Upload.hash_on` reads at once."""


class Upload(ABC):
    """One file that arrives; a context manager that keeps what was written if it is left before `finish`.

    Args:
        ref: the file.
        size: number of bytes that are here already.

    Attributes:
        size: number of bytes that are here.
    """

    def __init__(self, ref: FileRef, size: int) -> None:
        self._ref = ref
        self._digest, self._hashed_bytes = hashlib.sha256(), 0
        self.size = size

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let others go on with the file; what was written stays."""

    @abstractmethod
    def _append(self, data: bytes) -> None:
        """Store a piece behind what is here."""

    def _discard(self) -> None:
        """Forget what is here, since it is not the file."""
        self._digest = hashlib.sha256()
        self.size = self._hashed_bytes = 0

    @abstractmethod
    def _publish(self, record: Callable[[], None] | None) -> None:
        """Complete the file, after `record`."""

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
        self._append(data)
        if self._hashed_bytes == self.size:
            self._digest.update(data)
            self._hashed_bytes += len(data)
        self.size += len(data)
        return True

    def hash_on(self) -> bool:
        """Hash some more of what an earlier upload has written; return whether there may be more."""
        return False

    def finish(self, record: Callable[[], None] | None = None) -> None:
        """Verify the file, and return once it is complete; on a disk, once it would survive a power cut.

        Args:
            record: optional callback, called when the file is verified, before it is complete.

        Raises:
            FileDamaged: bytes are missing, and those that are here stay.
            WrongFile: they are not those of the reference.
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
            found, size = self._digest.hexdigest(), self.size
            self._discard()
            raise WrongFile(
                f"file {self._ref.sha256[:12]}: {size} bytes with SHA-256 {found[:12]} arrived, expected "
                f"{self._ref.size} bytes; send it again"
            )
        self._publish(record)


class DiskUpload(Upload):
    """One upload into the folder of files, under a temporary name until the file is complete and verified.

    Args:
        ref: the file.
        file: the part of it that is here, locked.
        part: path of the part.
        path: path of the complete file.
        with_room: does work on the disk that writes so many bytes, see `FileStore.with_room`.
    """

    def __init__(
        self,
        ref: FileRef,
        file: IO[bytes],
        part: Path,
        path: Path,
        with_room: Callable[[Callable[[], None], int], None],
    ) -> None:
        super().__init__(ref, file.seek(0, os.SEEK_END))
        self._file, self._part, self._path = file, part, path
        self._with_room = with_room

    def close(self) -> None:
        """Release the lock."""
        with suppress(OSError):  # what is still in the buffer of a full disk's file is sent again
            self._file.close()

    def write(self, data: bytes) -> bool:
        """Append a piece, unless another upload has completed the file."""
        super().write(data)
        with explain_disk(self._ref), suppress(FileNotFoundError):
            if self._path.stat().st_size == self._ref.size:
                self._part.unlink(missing_ok=True)
                return False
        return True

    def _append(self, data: bytes) -> None:
        with explain_disk(self._ref):
            self._with_room(partial(self._append_once, data), MAX_PIECE_BYTES)

    def _append_once(self, data: bytes) -> None:
        hit_failpoint("files.mid-write")
        try:
            self._file.write(data)
            self._file.flush()
        except OSError:
            self._file.truncate(self.size)  # a part of the piece may have been written
            raise

    def _discard(self) -> None:
        self._part.unlink(missing_ok=True)

    def hash_on(self) -> bool:
        """Hash up to 64 MiB more of what an earlier upload has written."""
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

    def _publish(self, record: Callable[[], None] | None) -> None:
        with explain_disk(self._ref):
            if record is not None:
                self._with_room(record, MAX_PIECE_BYTES)
            self._with_room(self._rename, MAX_PIECE_BYTES)

    def _rename(self) -> None:
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
