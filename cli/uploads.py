"""Upload of a job's inputs, before the job is submitted: what the aggregator lacks of them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from cli.client import JobsClient
from cli.output import Output
from cli.progress import PLAIN_SECONDS
from protos.files_pb2 import FileRef
from services.config.job_inputs import JobInput
from services.config.pretrained import file_sha256
from services.corpora.conversion import converted, remove_conversion
from services.corpora.token_file import describe_token_file
from services.errors import Refused
from services.input_files import open_input_file
from services.printable import printable_path
from services.protocol.file_refs import MAX_FILE_BYTES

_MB = 1_000_000


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


class UploadView:
    """Context manager that shows how far an upload is: a bar on a terminal, plain lines elsewhere.

    It shows nothing of files that the aggregator has already, and writes to standard error: the result of `submit` is
    a job's id.

    Args:
        refs: the files.
        output: where lines go.
    """

    def __init__(self, refs: list[FileRef], output: Output) -> None:
        self._output = output
        self._sizes = {ref.sha256: ref.size for ref in refs}
        self._first: dict[str, int] = {}  # bytes that the aggregator had at first, by SHA-256
        self._here: dict[str, int] = {}
        self._began = self._shown_at_seconds = time.monotonic()
        console = Console(stderr=True, highlight=False)
        self._bar = (
            Progress(
                TextColumn("upload"),
                BarColumn(bar_width=None),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=console,
                expand=True,
                transient=True,
            )
            if console.is_terminal
            else None
        )
        self._task = self._bar.add_task("upload", total=None) if self._bar else None

    def __enter__(self) -> UploadView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        if error is None and self.sent_bytes:
            seconds = time.monotonic() - self._began
            self._output.warn(f"uploaded {self.sent_bytes / _MB:,.1f} MB in {seconds:.1f} s")

    @property
    def sent_bytes(self) -> int:
        """Number of bytes that were sent; those that had to be sent again count once."""
        return sum(here - self._first[sha256] for sha256, here in self._here.items())

    def tell(self, ref: FileRef, here: int) -> None:
        """Take the number of a file's bytes that the aggregator has."""
        self._first.setdefault(ref.sha256, here)
        self._here[ref.sha256] = max(here, self._here.get(ref.sha256, 0))
        if not self.sent_bytes:
            return
        done, total = sum(self._here.values()), sum(self._sizes.values())
        if self._bar and self._task is not None:
            self._bar.start()
            self._bar.update(self._task, completed=done, total=total)
        elif time.monotonic() - self._shown_at_seconds >= PLAIN_SECONDS:
            self._shown_at_seconds = time.monotonic()
            self._output.warn(f"uploaded {done / _MB:,.0f} of {total / _MB:,.0f} MB")


async def upload_inputs(client: JobsClient, files: InputFiles, output: Output) -> None:
    """Send the aggregator what it lacks of a job's inputs.

    Raises:
        Refused: a file has changed, or the aggregator refuses one.
        NotYet: the aggregator has no room for them now.
        Failed: the aggregator can't be reached for longer than an outage lasts, or files arrive damaged.
    """
    if files.refs:
        with UploadView(files.refs, output) as view:
            await client.upload(files, files.refs, view.tell, files.check_sent)
