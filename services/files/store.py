"""Files on disk, named by their SHA-256.

A file is complete or absent: it is written under a temporary name, verified, synchronised and renamed. What an
interrupted upload has written stays, so that a later one continues there. All methods block; any thread may call.
Several processes may share the folder.

    files/3f5a...                 a complete file; locked (shared) while somebody holds it
    files/.3f5a...-9c1b.partial   a part of it, of an upload that is under way, locked, or was interrupted

Each writer has a part of its own, so none waits for another, or goes on with what another has made up.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Protocol, TypeVar

from protos.files_pb2 import FilePiece, FileRef, ReadFileRequest
from services.errors import Failed, Refused, TiermeshError, is_out_of_space
from services.files.errors import FileDamaged, FileMissing, NoRoom, UploadUnderWay
from services.files.pieces import make_piece
from services.files.upload import DiskUpload, Upload, explain_disk
from services.protocol.file_refs import MAX_FILE_BYTES, MAX_PIECE_BYTES, check_ref, make_ref

MAX_STORE_BYTES = 1 << 38
"""Maximum size of all files of a store: 256 GiB."""
UNUSED_SECONDS = 3600.0
"""Time after which a file that no job keeps, and that nobody asked for, read or sent, is removed.

A peer that has asked whether a file is here may refer to it soon after, so the end of the only job that keeps it must
not remove it in between.
"""
RECENT_SECONDS = 60.0
"""Time for which a full disk does not cost a file that was used: the same peer may need it together with the next."""
MAX_PARTS_OF_WRITER = 32
"""Maximum number of parts of files that one writer leaves behind; the longest unused go."""
Result = TypeVar("Result")

_PARTIAL = ".partial"
_WRITER_DIGITS = 16
_SUFFIX = 1 + _WRITER_DIGITS + len(_PARTIAL)


class Library(Protocol):
    """Further files by SHA-256, which somebody else keeps."""

    def size_of(self, sha256: str) -> int | None:
        """Return the size of a file in bytes; None if it is not here."""

    def open(self, sha256: str) -> IO[bytes] | None:
        """Return a file, open for reading; None if it is not here, or has changed."""


class FileStore:
    """Folder of files by SHA-256.

    Args:
        folder: path of the folder, created with the first file.
        max_file_bytes: largest size of one file.
        max_store_bytes: largest size of all files.
        store_limit: what sets that size, for errors.
        library: further files that can be read; None for none.
        clock: Unix time in seconds.

    Attributes:
        max_file_bytes: as above.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        max_store_bytes: int = MAX_STORE_BYTES,
        store_limit: str = "that limit",
        library: Library | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self.max_file_bytes = max_file_bytes
        self._max_store_bytes = max_store_bytes
        self._store_limit = store_limit
        self._library = library
        self._clock = clock
        self._kept: dict[str, set[str]] = {}  # files by job
        self._inputs: dict[str, frozenset[str]] = {}  # files that live jobs name, by job
        self._lock = threading.Lock()  # guards these, and removal against use

    # ---- what a job keeps ----

    def keep(self, job: str, refs: Iterable[FileRef]) -> None:
        """Keep files until the job releases them."""
        with self._lock:
            self._kept.setdefault(job, set()).update(ref.sha256 for ref in refs)

    def keep_inputs(self, job: str, sha256s: frozenset[str]) -> None:
        """Keep the files that a live job names, those that are not here yet too, until it is released."""
        if sha256s:
            with self._lock:
                self._inputs[job] = sha256s

    def release(self, job: str) -> None:
        """Keep no files for a job any longer, which has ended; remove files that are unused for long."""
        with self._lock:
            self._kept.pop(job, None)
            self._inputs.pop(job, None)
            self._remove_unused(self._clock() - UNUSED_SECONDS)

    def _kept_files(self) -> set[str]:
        return set().union(*self._kept.values(), *self._inputs.values())

    def is_kept(self, sha256: str) -> bool:
        """Return whether a job keeps a file."""
        with self._lock:
            return sha256 in self._kept_files()

    def names(self) -> set[str]:
        """Return the SHA-256 of all files that are here and complete."""
        return {path.name for path, _ in self._list() if not _is_part(path)}

    def _remove_unused(self, before_seconds: float) -> None:
        """Remove files that no job keeps and that were last used before a time."""
        kept = self._kept_files()
        for path, status in self._list():
            if path.name not in kept and _last_use_seconds(status) < before_seconds:
                _remove_unless_locked(path)

    def _list(self) -> list[tuple[Path, os.stat_result]]:
        """Return all files and parts with their status, the longest unused first."""
        found = []
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            with suppress(FileNotFoundError):  # renamed or removed meanwhile
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    found.append((path, status))
        return sorted(found, key=lambda each: _last_use_seconds(each[1]))

    # ---- reading ----

    def offset(self, ref: FileRef, writer: str = "") -> int | None:
        """Return how many bytes of a file are here from an interrupted upload; None if the file is complete.

        The file counts as used now.

        Args:
            ref: the file.
            writer: who would go on with the upload; empty for this process.

        Raises:
            Refused: the reference is malformed.
        """
        self._check(ref)
        if self._library is not None and self._library.size_of(ref.sha256) == ref.size:
            return None
        path = self._path(ref.sha256)
        with self._lock, suppress(FileNotFoundError):
            if path.stat().st_size == ref.size:
                _note_use(path)
                return None
            # Either the disk has damaged the file, which an upload replaces, or the reference is wrong.
        size = self.part_bytes(ref.sha256, writer)
        return size if size <= ref.size else 0

    def part_bytes(self, sha256: str, writer: str = "") -> int:
        """Return how many bytes an interrupted upload by a writer has left of a file; 0 if there was none."""
        with suppress(FileNotFoundError):
            return self._part(sha256, writer).stat().st_size
        return 0

    def has(self, refs: Iterable[FileRef]) -> bool:
        """Return whether all these files are here and complete."""
        return all(self.offset(ref) is None for ref in refs)

    def open(self, sha256: str) -> tuple[IO[bytes], int]:
        """Return a file, open for reading, and its size in bytes.

        Raises:
            FileMissing: there is no such file.
            Failed: the disk can't be read.
        """
        self._check(FileRef(sha256=sha256))
        try:
            file = self._path(sha256).open("rb")
            _note_use(self._path(sha256))
            return file, os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            found = self._library.open(sha256) if self._library is not None else None
            if found is not None:
                return found, os.fstat(found.fileno()).st_size
            raise FileMissing(
                f"file {sha256[:12]}: not here, or removed since no job needs it; upload it again"
            ) from None
        except OSError as error:
            raise Failed(f"file {sha256[:12]}: can't be read: {error.strerror or error}") from None

    def read_piece(self, request: ReadFileRequest) -> FilePiece:
        """Return the piece of a file that begins at a request's offset.

        Raises:
            FileMissing: there is no such file.
            Failed: the disk can't be read.
        """
        file, size = self.open(request.sha256)
        with file:
            ref = FileRef(sha256=request.sha256, size=size)
            try:
                return make_piece(file, ref, request.offset, request.length)
            except OSError as error:
                raise Failed(f"file {ref.sha256[:12]}: can't be read: {error.strerror or error}") from None

    def read(self, ref: FileRef, max_bytes: int) -> bytes:
        """Return the content of a file, verified.

        Args:
            ref: the file.
            max_bytes: largest size that is read.

        Raises:
            FileMissing: there is no such file.
            Refused: it is larger, or of another size than its reference says.
            FileDamaged: the disk has damaged it.
        """
        self._check(ref, max_bytes)
        file, size = self.open(ref.sha256)
        with file:
            content = file.read() if size <= max_bytes else b""
        if size <= max_bytes and make_ref(content).sha256 != ref.sha256:
            self._path(ref.sha256).unlink(missing_ok=True)
            raise FileDamaged(f"file {ref.sha256[:12]}: damaged on the disk, and removed; upload it again")
        if size != ref.size:
            raise Refused(
                f"file {ref.sha256[:12]}: {size} bytes, its reference says {ref.size}; correct the reference"
            )
        return content

    def hold(self, sha256: str) -> IO[bytes] | None:
        """Open a file that is here, so that no process removes it until it is closed; None if it is not here.

        Raises:
            Failed: the disk can't be read.
        """
        self._check(FileRef(sha256=sha256))
        path = self._path(sha256)
        while True:
            try:
                file = path.open("rb")
                fcntl.flock(file, fcntl.LOCK_SH)  # waits no longer than a removal takes
                if _is_same(file, path):
                    _note_use(path)
                    return file
                file.close()
            except FileNotFoundError:
                return None
            except OSError as error:
                raise Failed(f"file {sha256[:12]}: can't be read: {error.strerror or error}") from None

    def remove_if_damaged(self, sha256: str) -> bool:
        """Read a file that is here, and remove it if its bytes are not those that the SHA-256 names.

        Returns:
            Whether it was damaged.

        Raises:
            Failed: the disk can't be read.
        """
        path, digest = self._path(sha256), hashlib.sha256()
        try:
            with path.open("rb") as file:
                while block := file.read(MAX_PIECE_BYTES):
                    digest.update(block)
        except OSError as error:
            raise Failed(f"file {sha256[:12]}: can't be read: {error.strerror or error}") from None
        if digest.hexdigest() == sha256:
            return False
        path.unlink(missing_ok=True)
        return True

    def remove_damaged(self, sha256: str, inode: int) -> None:
        """Remove a file whose reader found it damaged, unless another one has replaced it.

        Args:
            sha256: SHA-256 of the file.
            inode: number of the file that was read.
        """
        self._check(FileRef(sha256=sha256))
        with suppress(FileNotFoundError):
            if self._path(sha256).stat().st_ino == inode:
                self._path(sha256).unlink()

    def path_of(self, sha256: str) -> Path:
        """Return the path of a file that is here, for its holder."""
        return self._path(sha256)

    def remove_unkept(self, sha256: str) -> bool:
        """Remove a complete file, unless a job keeps it or it is held; return whether it is gone."""
        with self._lock:
            return sha256 not in self._kept_files() and _remove_unless_locked(self._path(sha256))

    def last_use_seconds(self, sha256: str) -> float | None:
        """Return when a file was last used, as Unix time; None if it is not here."""
        with suppress(FileNotFoundError):
            return _last_use_seconds(self._path(sha256).stat())
        return None

    def reclaim(self, size_bytes: int) -> int:
        """Free so many bytes of a full disk, of what nobody needs, and return how many are free now.

        Parts of files go first, which an interrupted upload has left; then files that no job keeps, and that nobody has
        used for a minute. Of each kind the longest unused go first.
        """
        with self._lock:
            return self._remove_needless(size_bytes, self._clock() - RECENT_SECONDS)

    def with_room(self, work: Callable[[], Result], size_bytes: int) -> Result:
        """Do work on the disk; if the disk is full, do it once more after `reclaim`, unless nothing could go.

        Args:
            work: the work; it may be begun again.
            size_bytes: how much it writes.
        """
        try:
            return work()
        except (OSError, TiermeshError) as error:
            if not (isinstance(error, NoRoom) or is_out_of_space(error)) or not self.reclaim(size_bytes):
                raise
        return work()

    def _remove_needless(self, size_bytes: int, before_seconds: float, spared: Path | None = None) -> int:
        kept, freed_bytes = self._kept_files(), 0
        for path, status in sorted(self._list(), key=lambda each: not _is_part(each[0])):
            if freed_bytes >= size_bytes:
                break
            if path.name in kept or path == spared:
                continue
            is_unused = _is_part(path) or _last_use_seconds(status) < before_seconds
            if is_unused and _remove_unless_locked(path):
                freed_bytes += status.st_size
        return freed_bytes

    # ---- writing ----

    def begin(self, ref: FileRef, offset: int, writer: str = "") -> Upload | None:
        """Begin or continue an upload; return None if the file is complete.

        Args:
            ref: the file.
            offset: position of the first byte that the caller will send.
            writer: who uploads it; empty for this process.

        Raises:
            Refused: the reference is malformed, or the file is too large.
            UploadUnderWay: another process uploads it into this folder, or fewer bytes than the offset are here.
            NoRoom: the store or the disk is full.
        """
        self._check(ref)
        present, part = self.offset(ref, writer), self._part(ref.sha256, writer)
        if present is None:
            return None
        self._make_room(ref, present, part)
        file = self.with_room(partial(self._open_part, ref, part), MAX_PIECE_BYTES)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_same(file, part):  # it was finished or removed meanwhile
                raise BlockingIOError
            if self.offset(ref, writer) is None:  # another writer finished it before this part was made
                part.unlink(missing_ok=True)
                file.close()
                return None
            if file.tell() < offset:
                raise UploadUnderWay(
                    f"file {ref.sha256[:12]}: {file.tell()} bytes are here, the upload continues at {offset}; ask "
                    "Missing again"
                )
            file.truncate(offset)  # what is beyond is sent again
            return DiskUpload(ref, file, part, self._path(ref.sha256), self.with_room)
        except BaseException as error:
            file.close()
            if isinstance(error, BlockingIOError):
                raise UploadUnderWay(
                    f"file {ref.sha256[:12]}: another process uploads it; wait for it"
                ) from None
            raise

    def _open_part(self, ref: FileRef, part: Path) -> IO[bytes]:
        with explain_disk(ref):
            self._folder.mkdir(parents=True, exist_ok=True)
            return part.open("a+b")

    def put(self, content: bytes) -> FileRef:
        """Store a file whose content is in memory.

        Raises:
            NoRoom: the store or the disk is full.
            Failed: the disk failed, or another peer uploads it.
        """
        ref = make_ref(content)
        upload = self.begin(ref, 0)
        if upload is not None:
            with upload:
                for start in range(0, ref.size, MAX_PIECE_BYTES):
                    upload.write(content[start : start + MAX_PIECE_BYTES])
                upload.finish()
        return ref

    def _make_room(self, ref: FileRef, present: int, part: Path) -> None:
        """Remove what nobody needs, until another file fits, and the writer has not too many parts."""
        if ref.size > self._max_store_bytes:
            raise Refused(
                f"file {ref.sha256[:12]}: {ref.size} bytes, but all files together may have "
                f"{self._max_store_bytes} bytes; raise {self._store_limit}, or give a smaller file"
            )
        with self._lock:
            listed = self._list()
            others = [
                path for path, _ in listed if path.name[-_SUFFIX:] == part.name[-_SUFFIX:] and path != part
            ]
            for path in others[: max(0, len(others) + 1 - MAX_PARTS_OF_WRITER)]:
                _remove_unless_locked(path)
            excess = sum(each.st_size for _, each in listed) + ref.size - present - self._max_store_bytes
            if excess > 0:
                excess -= self._remove_needless(excess, math.inf, part)
        if excess > 0:
            raise NoRoom(
                f"file {ref.sha256[:12]}: {ref.size} bytes, but all files together may have {self._max_store_bytes} "
                "bytes; wait until a job ends"
            )

    def _check(self, ref: FileRef, max_bytes: int | None = None) -> None:
        refusal = check_ref(ref, self.max_file_bytes if max_bytes is None else max_bytes)
        if refusal is not None:
            raise Refused(refusal.reason)

    def _path(self, sha256: str) -> Path:
        return self._folder / sha256

    def _part(self, sha256: str, writer: str) -> Path:
        of_writer = hashlib.sha256(writer.encode()).hexdigest()[:_WRITER_DIGITS]
        return self._folder / f".{sha256}-{of_writer}{_PARTIAL}"


def _is_part(path: Path) -> bool:
    return path.name.endswith(_PARTIAL)


def _note_use(path: Path) -> None:
    """Set the time of a file's last use, and not that of its last change, by which its readers know it again."""
    with suppress(PermissionError):  # a file of another user only counts as unused
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def _last_use_seconds(status: os.stat_result) -> float:
    """Return when a file was last read or written, as Unix time."""
    return max(status.st_atime, status.st_mtime)


def _is_same(file: IO[bytes], path: Path) -> bool:
    """Return whether an open file still has this path."""
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())


def _remove_unless_locked(path: Path) -> bool:
    """Remove a file that no process uploads or holds; return whether it is gone."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True
