"""The files that a job names, as a source of their upload."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO

from protos.files_pb2 import FileRef
from services.config.job_inputs import JobInput
from services.config.pretrained import file_sha256
from services.corpora.conversion import converted, remove_conversion
from services.corpora.token_file import describe_token_file
from services.errors import Refused
from services.input_files import open_input_file
from services.printable import printable_path
from services.protocol.file_refs import MAX_FILE_BYTES


class InputFiles:
    """The files of a job's inputs, as a source of uploads.

    Args:
        inputs: the inputs.
        code: content of the one that is code; it was read together with the job.

    Attributes:
        refs: references to the files, each once.

    Raises:
        Refused: one can't be read, is too large, or has changed since the job was made.
    """

    def __init__(self, inputs: Iterable[JobInput], code: bytes = b"") -> None:
        self._paths: dict[str, tuple[Path, str]] = {}  # path and setting, by SHA-256
        self._contents: dict[str, bytes] = {}  # of files that are in memory, by SHA-256
        self._sent = ""
        for each in inputs:
            if each.is_code:
                self._contents |= dict.fromkeys(each.files.values(), code)
                continue
            path = Path(each.path)
            if each.identity is not None:
                path = converted(path, each.field)
                self._add_identity(each, path)
            self._paths |= {sha256: (path / name, each.field) for name, sha256 in each.files.items()}
        self.refs = [self._make_ref(sha256) for sha256 in (*self._contents, *self._paths)]

    def _add_identity(self, wanted: JobInput, path: Path) -> None:
        """Take the description of a file of token ids."""
        sidecar = describe_token_file(path, wanted.field)
        if sidecar.identity != wanted.identity:
            raise _changed(path, wanted.field)
        self._contents[sidecar.identity] = sidecar.identity_body()

    def _make_ref(self, sha256: str) -> FileRef:
        file, size = self.open(sha256)
        if not isinstance(file, bytes):
            file.close()
        if size > MAX_FILE_BYTES:
            path, field = self._paths[sha256]
            raise Refused(
                f"{field}: {printable_path(path)} has {size} bytes, expected at most {MAX_FILE_BYTES} for an upload; "
                "split it, or copy it to the hosts and give --no-upload"
            )
        return FileRef(sha256=sha256, size=size)

    def open(self, sha256: str) -> tuple[IO[bytes] | bytes, int]:
        """Return a file, open or as its content, and its size in bytes."""
        self._sent = sha256
        if sha256 in self._contents:
            return self._contents[sha256], len(self._contents[sha256])
        path, field = self._paths[sha256]
        file = open_input_file(field, path)
        return file, file.seek(0, 2)

    def check_sent(self) -> None:
        """Check the file that was sent last, which has arrived as another one.

        Raises:
            Refused: it has changed since the job was made.
        """
        if self._sent in self._paths:
            path, field = self._paths[self._sent]
            if file_sha256(path) != self._sent:
                remove_conversion(path)  # so that the next submit makes it again
                raise _changed(path, field)


def _changed(path: Path, field: str) -> Refused:
    return Refused(f"{field}: {printable_path(path)} has changed while it was submitted; submit it again")
