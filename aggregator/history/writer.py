"""Writes the history of running jobs from their events."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np

from aggregator.history.columns import (
    GENERATION,
    WAITED_FOR,
    Records,
    are_whole,
    figures_of_event,
    unknown_blocks,
    unknown_step,
)
from aggregator.history.files import (
    LEVELS,
    RecordFile,
    read_first_step,
    read_names,
    read_summaries,
)
from protos.jobs_pb2 import RUNNING, JobEvent
from services.errors import Failed
from services.printable import printable

log = logging.getLogger("tiermesh.aggregator")

_PIECE_RECORDS = 4096
"""Records that are read at once."""
MOST_NAMES = 1024
"""Number of workers of a job whose names are kept. A step that waited for another one has none."""
_NAME_CHARACTERS = 200


class MetricsHistory:
    """The histories of all jobs. It is used on the event loop, except where a method says more.

    Rows are not synchronised: a power loss may cost those of the last seconds, and a full disk those of its time.

    Args:
        folder: folder that has a folder for each job.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, _JobWriter] = {}
        self._failing: set[str] = set()  # jobs whose last row was lost

    def record(self, event: JobEvent) -> None:
        """Write a step's or an evaluation's figures; what can't be written is lost, and logged once."""
        job = event.job.id
        if event.kind not in ("step", "evaluation"):
            if event.job.state != RUNNING:
                self._close(job)
            return
        try:
            if job not in self._running:
                self._running[job] = _JobWriter(self.folder / job)
            self._running[job].record(event)
            self._failing.discard(job)
        except (OSError, Failed) as error:
            self._close(job)
            if job not in self._failing:
                self._failing.add(job)
                text = "job %s: rows of its metrics are lost from step %d on: %s"
                log.warning(text, job, event.job.step, error, extra={"job": job})

    def size_bytes(self, job: str) -> int:
        """Return the size of a job's history; 0 if it has none. Any thread may call.

        Raises:
            OSError: the disk failed.
        """
        try:
            return sum(each.stat().st_size for each in os.scandir(self.folder / job))
        except FileNotFoundError:
            return 0

    def remove(self, job: str) -> None:
        """Remove the history of a job that has ended. Any thread may call.

        Raises:
            OSError: the disk failed.
        """
        with suppress(FileNotFoundError):
            shutil.rmtree(self.folder / job)

    def close(self) -> None:
        """Close all files."""
        for job in list(self._running):
            self._close(job)

    def _close(self, job: str) -> None:
        writer = self._running.pop(job, None)
        if writer is not None:
            writer.close()


class _JobWriter:
    """The open files of one job.

    The place of a step's record is its distance from the first step. A step of a newer generation is one that is
    redone, so the records of the steps after it are void.

    Args:
        folder: folder of the job's history.

    Raises:
        OSError: the disk failed.
        Failed: a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._files: list[RecordFile] = []
        try:
            for level in LEVELS:
                self._files.append(RecordFile(folder, level, writable=True))
            self._steps = self._files[0]
            self._names = _Names(folder / "names")
            self._first_step = read_first_step(self._files)
            self._generation = self._repair()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self._files:
            file.close()

    def record(self, event: JobEvent) -> None:
        """Write an event's figures into its step's record.

        Raises:
            OSError: the disk failed.
        """
        evaluates = event.kind == "evaluation"
        step = event.job.validation_step if evaluates else event.job.step
        if self._first_step is None or step < self._first_step:
            self._begin(step)
        place = step - (self._first_step or 0)
        if event.job.generation > self._generation:
            self._cut(place + evaluates)
            self._generation = event.job.generation
        record = self._steps.read(place, place + 1).copy()
        if not len(record) or not are_whole(record)[0]:
            record = unknown_step()
            record[GENERATION] = event.job.generation
        for name, value in figures_of_event(event).items():
            record[name] = value
        if event.waited_for:
            record[WAITED_FOR] = self._names.number_of(event.waited_for)
        self._steps.write(place, record)
        self._summarise(place)

    def _begin(self, step: int) -> None:
        for file in self._files:
            file.begin(step)
        self._first_step = step

    def _cut(self, steps: int) -> None:
        """Keep the records of the first steps alone."""
        for file in self._files:
            file.cut(steps // file.level)

    def _repair(self) -> int:
        """Remove what a kill has cut short, and make headers that are damaged and summaries that are missing again.

        Return the last generation.
        """
        if self._first_step is None:
            return 0
        for file in self._files:
            if not self._is_whole(file):
                if file is self._steps:
                    file.write_header(self._first_step)
                else:
                    file.begin(self._first_step)
        count = len(self._steps)
        while count:
            start = max(0, count - _PIECE_RECORDS)
            whole = np.flatnonzero(are_whole(self._steps.read(start, count)))
            if len(whole):
                count = start + int(whole[-1]) + 1
                break
            count = start
        self._cut(count)
        for file in self._files[1:]:
            file.cut(max(0, len(file) - 1))  # the last one may have been cut short
        if not count:
            return 0
        self._summarise(count - 1)
        return int(self._steps.read(count - 1, count)[GENERATION][0])

    def _is_whole(self, file: RecordFile) -> bool:
        """Return whether a file's header is as it should be; log a warning if it is damaged."""
        try:
            return file.read_first_step() == self._first_step
        except Failed:
            log.warning("%s: its header is damaged; it is made again from the other files", file.path)
            return False

    def _summarise(self, place: int) -> None:
        """Write the summary of the blocks that have a step, if they are complete, and those that are missing."""
        for finer, file in zip(self._files, self._files[1:], strict=False):
            block, written, complete = place // file.level, len(file), len(self._steps) // file.level
            blocks = (block, block + 1) if block < written else (written, complete)
            ratio = file.level // finer.level
            for start in range(*blocks, _PIECE_RECORDS // ratio):
                stop = min(start + _PIECE_RECORDS // ratio, blocks[1])
                file.write(start, _merge(finer, start, stop, ratio))


def _merge(finer: RecordFile, start: int, stop: int, ratio: int) -> Records:
    """Return the summaries of some blocks, each of so many records of a finer level. A block without steps has none."""
    records = unknown_blocks(stop - start)
    merged = read_summaries(finer, start * ratio, stop * ratio)
    merged = merged.merge(merged.last // (finer.level * ratio))
    merged.fill(records, merged.last // (finer.level * ratio) - start)
    return records


class _Names:
    """The names of the workers that a job has waited for, by number from 1 on.

    Args:
        path: file with a line for each.

    Raises:
        OSError: the disk failed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        names = read_names(path)
        if names:
            os.truncate(
                path, sum(len(each.encode()) + 1 for each in names)
            )  # a kill may have cut another one short
        self._numbers = {name: number for number, name in enumerate(names, 1)}

    def number_of(self, name: str) -> int:
        """Return the number of a name, which is added if it is new; 0 if there are too many.

        Raises:
            OSError: the disk failed.
        """
        name = printable(name, _NAME_CHARACTERS)
        if name not in self._numbers and len(self._numbers) < MOST_NAMES:
            with self._path.open("ab", buffering=0) as file:
                line = f"{name}\n".encode()
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            self._numbers[name] = len(self._numbers) + 1
        return self._numbers.get(name, 0)
