"""Upload of a job's inputs, before the job is submitted: what the aggregator lacks of them."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from cli.output import Output
from cli.progress import PLAIN_SECONDS
from protos.files_pb2 import FileRef
from services.jobs.client import JobsClient
from services.jobs.input_files import InputFiles

_MB = 1_000_000


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
