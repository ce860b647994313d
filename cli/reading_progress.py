"""Progress of the reading of a large corpus, before a job can be checked or submitted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from cli.output import Output
from services.corpora.reading_progress import watch_reading
from services.printable import printable_path

PATIENCE_SECONDS = 1.0
"""Time before a bar appears: most files are read within it."""


@contextmanager
def show_reading(output: Output) -> Iterator[None]:
    """Show a bar on standard error while a large file is read; nothing with --json, or without a terminal."""
    console = Console(stderr=True, highlight=False)
    if output.as_json or not console.is_terminal:
        yield
        return
    bar = Progress(
        TextColumn("reading {task.description}", markup=False),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        expand=True,
        transient=True,
    )
    tasks: dict[Path, TaskID] = {}
    began = time.monotonic()

    def show(path: Path, read_bytes: int, size_bytes: int) -> None:
        if time.monotonic() - began < PATIENCE_SECONDS:
            return
        if path not in tasks:
            output.erase()
            tasks[path] = bar.add_task(printable_path(path.name), total=size_bytes)
            bar.start()
        bar.update(tasks[path], completed=read_bytes, visible=read_bytes < size_bytes)

    try:
        with watch_reading(show):
            yield
    finally:
        bar.stop()
