"""Progress of tokenizing: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from cli.output import Output
from cli.progress import PLAIN_SECONDS


class TokenizeProgress:
    """Context manager that shows how much of the texts is done.

    Args:
        output: where lines go without a terminal.
        total_bytes: size of the texts.
    """

    def __init__(self, output: Output, total_bytes: int) -> None:
        self._output = output
        self._total_bytes = total_bytes
        console = Console(stderr=output.as_json, highlight=False)
        self._bar = (
            Progress(
                BarColumn(bar_width=None),
                DownloadColumn(),
                TextColumn("{task.fields[ids]} ids", markup=False),
                TimeRemainingColumn(),
                console=console,
                expand=True,
            )
            if console.is_terminal
            else None
        )
        self._task = self._bar.add_task("", total=total_bytes, ids="0") if self._bar else None
        self._shown_at_seconds = time.monotonic()

    def __enter__(self) -> TokenizeProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, read_bytes: int, ids: int) -> None:
        """Show that so much of the texts was read, and so many ids were written."""
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=read_bytes, ids=f"{ids:,}")
        elif time.monotonic() - self._shown_at_seconds >= PLAIN_SECONDS:
            self._shown_at_seconds = time.monotonic()
            share = read_bytes / max(self._total_bytes, 1)
            self._output.say(f"{share:.0%} of {self._total_bytes / 1e6:,.0f} MB  {ids:,} ids")
