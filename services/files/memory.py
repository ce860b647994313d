"""Files in memory, named by their SHA-256: what a process sends and receives that keeps nothing on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from protos.files_pb2 import FilePiece, FileRef, ReadFileRequest
from services.errors import Refused
from services.files.errors import FileMissing, NoRoom, UploadUnderWay
from services.files.memory_file import MemoryFile
from services.files.pieces import make_piece
from services.files.upload import Upload
from services.instrumentation.failpoints import hit_failpoint
from services.protocol.file_refs import check_ref

MAX_UNEXPECTED = 16
"""Number of files that peers have sent unasked and that are kept, in part or whole; for another one the oldest goes.

They are the layouts of jobs that a shard is about to open. Jobs with the same layout share its file.
"""
MAX_EXPECTED_BYTES = 1 << 44
"""Largest size of an expected file; its memory is there already."""


class _Entry(Upload):
    """A file that is complete, or arrives: it stays here between two attempts of its sender."""

    def __init__(
        self, ref: FileRef, file: MemoryFile, check: Callable[[], None], *, is_expected: bool = True
    ) -> None:
        super().__init__(ref, 0)
        self.file, self.is_expected = file, is_expected
        self.is_complete = self.is_open = False
        self._check = check

    def close(self) -> None:
        """Let others go on with the file."""
        self.is_open = False

    def _append(self, data: bytes) -> None:
        hit_failpoint("memory.write")
        self.file.write(self.size, data)

    def _publish(self, record: Callable[[], None] | None) -> None:
        self._check()
        if record is not None:
            record()
        self.is_complete = True


class FilesInMemory:
    """Files by SHA-256. Any thread may call the methods.

    Args:
        contents: contents of files that can be read, by SHA-256.
        max_bytes: largest size of a file that a peer may send unasked.

    Attributes:
        max_file_bytes: largest size of any file.
    """

    max_file_bytes = MAX_EXPECTED_BYTES

    def __init__(self, contents: Mapping[str, bytes] | None = None, max_bytes: int = 0) -> None:
        self._max_bytes = max_bytes
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        for sha256, content in (contents or {}).items():
            self.add(FileRef(sha256=sha256), MemoryFile([content]))

    def add(self, ref: FileRef, file: MemoryFile) -> None:
        """Keep a file that peers may read, until it is removed."""
        self.expect(ref, file)
        self._entries[ref.sha256].is_complete = True

    def expect(self, ref: FileRef, file: MemoryFile, check: Callable[[], None] = lambda: None) -> None:
        """Have a file written into this memory as it arrives.

        Args:
            ref: the file.
            file: the memory.
            check: called when all bytes are written and verified; raises Refused if they are no such file.
        """
        self._entries[ref.sha256] = _Entry(ref, file, check)

    def remove(self, file: MemoryFile | None) -> None:
        """Keep a file no longer, if it is here."""
        for sha256, entry in list(self._entries.items()):
            if entry.file is file:
                del self._entries[sha256]

    def clear(self) -> None:
        """Keep no file any longer."""
        self._entries.clear()

    # ---- transfers ----

    def hold(self, sha256: str) -> MemoryFile | None:
        """Return a complete file; None if it is not here."""
        entry = self._entries.get(sha256)
        return entry.file if entry is not None and entry.is_complete else None

    def open(self, sha256: str) -> tuple[MemoryFile, int]:
        """Return a complete file and its size in bytes.

        Raises:
            FileMissing: there is no such file.
        """
        file = self.hold(sha256)
        if file is None:
            raise FileMissing(f"file {sha256[:12]!r}: not in memory, or no longer; send it again")
        return file, file.size

    def read_piece(self, request: ReadFileRequest) -> FilePiece:
        """Return the piece of a file that begins at a request's offset (FileMissing)."""
        file, size = self.open(request.sha256)
        hit_failpoint("memory.read")
        ref = FileRef(sha256=request.sha256, size=size)
        return make_piece(file, ref, request.offset, request.length)

    def offset(self, ref: FileRef, writer: str = "") -> int | None:
        """Return how many bytes of a file have arrived so far; None if it is complete (Refused)."""
        if refusal := check_ref(ref, self.max_file_bytes):
            raise Refused(refusal.reason)
        file = self.hold(ref.sha256)
        return None if file is not None and file.size == ref.size else self.part_bytes(ref.sha256)

    def part_bytes(self, sha256: str) -> int:
        """Return how many bytes of a file have arrived so far."""
        entry = self._entries.get(sha256)
        return entry.size if entry is not None else 0

    def begin(self, ref: FileRef, offset: int, writer: str = "") -> Upload | None:
        """Begin or continue to receive a file; return None if it is complete.

        Args:
            ref: the file.
            offset: position of the first byte that the caller will send.
            writer: who sends it.

        Raises:
            Refused: the reference is malformed, or its size is not the expected one.
            UploadUnderWay: another peer sends it, or the next byte is another one.
            NoRoom: too many others are being received.
        """
        with self._lock:
            if self.offset(ref) is None:
                return None
            entry = self._entries.get(ref.sha256) or self._add_unexpected(ref)
            if entry.file.size != ref.size:
                raise Refused(f"file {ref.sha256[:12]}: {ref.size} bytes, expected {entry.file.size}")
            if entry.is_open or entry.size != offset:
                raise UploadUnderWay(
                    f"file {ref.sha256[:12]}: another peer sends it, or byte {offset} is not the next one; ask Missing "
                    "again"
                )
            entry.is_open = True
            return entry

    def _add_unexpected(self, ref: FileRef) -> _Entry:
        """Add memory for a file, in place of the oldest unexpected one if there are too many."""
        place = f"file {ref.sha256[:12]}: {ref.size} bytes"
        if ref.size > self._max_bytes:
            raise Refused(f"{place}, expected at most {self._max_bytes}, since nobody has asked for it")
        unexpected = {sha256: each for sha256, each in self._entries.items() if not each.is_expected}
        if len(unexpected) >= MAX_UNEXPECTED:
            idle = next((sha256 for sha256, each in unexpected.items() if not each.is_open), None)
            if idle is None:
                raise NoRoom(f"{place}, but {len(unexpected)} other files arrive; wait for them")
            del self._entries[idle]
        entry = _Entry(ref, MemoryFile([bytearray(ref.size)]), lambda: None, is_expected=False)
        self._entries[ref.sha256] = entry
        return entry
