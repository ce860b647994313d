"""A checkpoint's folder as it arrives: partial until every file is there and verified, then renamed.

FOLDER/step-00000500/                      the checkpoint
FOLDER/.step-00000500.3f5a9c1b.partial/    what has arrived of it; a later download goes on there
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tiermesh.errors import Failed, Refused, error_of
from tiermesh.records import Checkpoint
from tiermesh.transport import BLOCK_BYTES


class CheckpointFolder:
    """The folder that a checkpoint is downloaded to.

    Args:
        checkpoint: step and files of the checkpoint.
        folder: folder that gets it.

    Attributes:
        place: the checkpoint's own folder, once it is complete.
    """

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        self._files = checkpoint.files
        self.place = folder / f"step-{checkpoint.step:08d}"
        names = "".join(f"{name} {file.sha256}\n" for name, file in sorted(self._files.items()))
        version = hashlib.sha256(names.encode()).hexdigest()[:8]
        self._partial = folder / f".{self.place.name}.{version}.partial"

    def create(self) -> None:
        """Create the partial folder.

        Raises:
            Refused: the checkpoint is there already, or the folder can't be written.
        """
        if self.place.exists():
            raise error_of("folder", self.place, "no such folder yet", "remove it, or give another one")
        try:
            self._partial.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None

    def arrived_bytes(self, name: str) -> int:
        """Return the number of a file's bytes that are here."""
        path = self._partial / name
        size_bytes = path.stat().st_size if path.exists() else 0
        if size_bytes > self._files[name].size_bytes:
            path.unlink()
            return 0
        return size_bytes

    def write(self, name: str, offset_bytes: int, block: bytes) -> None:
        """Write a block of a file.

        Raises:
            Failed: the server sends more than the file has.
            Refused: the folder can't be written.
        """
        if offset_bytes + len(block) > self._files[name].size_bytes:
            raise Failed(
                f"{name}: the server sends more than the {self._files[name].size_bytes} bytes that it has; download "
                "the checkpoint again"
            )
        try:
            with (self._partial / name).open("r+b" if offset_bytes else "wb") as file:
                file.seek(offset_bytes)
                file.write(block)
                file.truncate()
        except OSError as error:
            raise self._unwritable(error) from None

    def verify(self, name: str) -> None:
        """Check a complete file by its SHA-256, and make it durable.

        Raises:
            Failed: it is another one; it is removed.
        """
        path, digest = self._partial / name, hashlib.sha256()
        path.touch()  # no block has created an empty one
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
            os.fsync(file.fileno())
        if digest.hexdigest() != self._files[name].sha256:
            path.unlink()
            raise Failed(
                f"{name}: arrived with SHA-256 {digest.hexdigest()}, expected {self._files[name].sha256}; download the "
                "checkpoint again",
                field=name,
                value=digest.hexdigest(),
                expected=self._files[name].sha256,
                fix="download the checkpoint again",
            )

    def finish(self) -> Path:
        """Give the complete checkpoint its name, and return its folder."""
        try:
            self._partial.replace(self.place)
        except OSError as error:
            raise self._unwritable(error) from None
        return self.place

    def _unwritable(self, error: OSError) -> Refused:
        return error_of(
            "folder",
            self._partial.parent,
            f"a folder that can be written ({error.strerror})",
            "free space, or give another one",
        )
