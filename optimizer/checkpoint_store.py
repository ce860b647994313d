"""What an optimizer keeps on disk: of each job its checkpoints and the highest generation it ever gave out; and the
highest epoch that it ever obeyed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from optimizer.core.open_job import is_void
from protos import cluster_pb2 as pb
from services.checkpoints import (
    Checkpoint,
    Fence,
    find_newest,
    list_checkpoints,
    list_surplus,
    mark_removed,
    read_checkpoint,
    sync_folder,
    verify_checkpoint,
    write_checkpoint,
)
from services.config.job import JobConfig
from services.errors import Failed, Refused
from services.instrumentation.failpoints import hit_failpoint
from services.protocol.versions import LAST_EPOCH, LAST_GENERATION
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout

PART_BYTES = 1 << 20
"""Size of the pieces in which a checkpoint's files are sent."""
_GENERATION_FILE = "generation"


class EpochFile:
    """The highest epoch that an optimizer ever obeyed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> int:
        """The epoch, 0 if there was none (Refused: the file that tells is damaged)."""
        return _read_number(self._path, LAST_EPOCH, "the highest epoch that this optimizer has obeyed")

    def write(self, epoch: int) -> None:
        """Put an epoch on disk: when this returns, it survives power loss (Failed: the disk refused)."""
        try:
            _place(_temporary(self._path, epoch), self._path)
        except OSError as error:
            raise Failed(f"{self._path}: not written: {error.strerror or error}") from None


class CheckpointStore:
    """The folder of all jobs' checkpoints; each job has one named by its id.

    Args:
        root: that folder.
        fence: held while others are shown what was written; refuses (Failed) whoever may write no longer.
    """

    def __init__(self, root: Path, fence: Fence = nullcontext) -> None:
        self._root = root.absolute()
        self._fence = fence
        self._reading: dict[object, Path | None] = {}  # by reader: the checkpoint that must stay where it is
        self._lock = threading.Lock()  # of what is read, and of what is set aside

    def _folder(self, job: str) -> Path:
        if not re.fullmatch(r"[\w-]{1,100}", job):
            raise Refused(f"job id {job!r}: expected letters, digits, - and _; nothing else names a folder")
        return self._root / job

    def generation(self, job: str) -> int:
        """The highest generation given out, 0 if none.

        Raises:
            Refused: the file that tells is damaged.
        """
        path = self._folder(job) / _GENERATION_FILE
        return _read_number(path, LAST_GENERATION, "at least the generation of every checkpoint")

    def save_generation(self, job: str, generation: int) -> None:
        """Put a generation on disk: when this returns, it survives power loss.

        Raises:
            Failed: the disk refused, or the fence.
        """
        path = self._folder(job) / _GENERATION_FILE
        try:
            with self._fence():
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = _temporary(path, generation)
                hit_failpoint("optimizer.generation.before")
                _place(temporary, path)
            hit_failpoint("optimizer.generation.after")
        except OSError as error:
            raise Failed(f"{path}: not written: {error.strerror or error}") from None

    def newest(self, job: str, void: Collection[pb.Void] = ()) -> tuple[Checkpoint | None, list[str]]:
        """The newest intact checkpoint that counts, and what to tell of newer ones (Refused: none of them is)."""
        return find_newest(partial(_read_unless, void), self._folder(job))

    def write(
        self,
        job: str,
        generation: int,
        step: int,
        config: JobConfig,
        layout: Layout,
        weights: Float32Array,
        state: Mapping[str, NDArray[Any]],
        files: Mapping[str, bytes],
    ) -> tuple[pb.CheckpointWritten, int]:
        """Write a checkpoint; what to tell of it, and its size in bytes (Failed: the disk refused, or the fence)."""
        info = write_checkpoint(
            self._folder(job),
            job=job,
            generation=generation,
            step=step,
            config_json=config.to_json(),
            layout=layout,
            weights=weights,
            optimizer_state=state,
            files=files,
            fence=self._fence,
        )
        size_bytes = sum(file.stat().st_size for file in info.path.iterdir())
        return _written(job, generation, step, info.path, info.model_sha256), size_bytes

    def prune(self, job: str, written: int, *, keep_last: int, keep_every: int) -> list[str]:
        """Remove what a job need not keep now that step `written` is on the disk; a line for each that resists.

        What is being read stays until the next time.
        """
        problems = []
        try:
            for path in list_surplus(self._folder(job), written, keep_last=keep_last, keep_every=keep_every):
                try:
                    with self._fence(), self._lock:
                        if path in self._reading.values():
                            continue
                        aside = mark_removed(path)
                    shutil.rmtree(aside)
                except OSError as error:
                    problems.append(f"checkpoint {path}: not removed: {error.strerror or error}")
                except Failed as failed:
                    problems.append(f"checkpoint {path}: not removed: {failed}")
        except OSError as error:
            problems.append(
                f"{self._folder(job)}: older checkpoints not looked for: {error.strerror or error}"
            )
        return problems

    @staticmethod
    def describe(checkpoint: Checkpoint) -> pb.CheckpointWritten:
        """What to tell of a checkpoint that was found."""
        return _written(
            checkpoint.job, checkpoint.generation, checkpoint.step, checkpoint.path, checkpoint.model_sha256
        )

    async def parts(self, request: pb.ReadCheckpointRequest) -> AsyncIterator[pb.FilePart]:
        """The files of a checkpoint, in pieces of at most `PART_BYTES`, verified before the first.

        Raises:
            Refused: there is no such checkpoint, or it is damaged.
        """
        reader = object()
        with self._lock:
            self._reading[reader] = None
        try:
            async for part in self._parts(request, reader):
                yield part
        finally:
            with self._lock:
                del self._reading[reader]

    async def _parts(self, request: pb.ReadCheckpointRequest, reader: object) -> AsyncIterator[pb.FilePart]:
        path = await asyncio.to_thread(self._verified, request, reader)
        for file in sorted(path.iterdir()):
            size = file.stat().st_size
            with file.open("rb") as opened:
                while True:
                    data = await asyncio.to_thread(opened.read, PART_BYTES)
                    if not data and opened.tell():
                        break
                    yield pb.FilePart(path=file.name, data=data, size=size, step=int(path.name[5:]))
                    if not data:
                        break

    def _take(self, reader: object, path: Path) -> Path:
        """Verify a checkpoint, which stays as long as this reader is there."""
        with self._lock:
            if reader in self._reading:
                self._reading[reader] = path
        return verify_checkpoint(path)

    def _verified(self, request: pb.ReadCheckpointRequest, reader: object) -> Path:
        folder = self._folder(request.job)
        if request.newest:
            newest, _ = find_newest(partial(self._take, reader), folder)
            if newest is None:
                raise Refused(f"job {request.job} has no checkpoint yet")
            return newest
        path = folder / f"step-{request.step:08d}"
        held = list_checkpoints(folder)
        if path not in held:
            steps = ", ".join(str(int(each.name[5:])) for each in held) or "none"
            raise Refused(f"job {request.job} has no checkpoint of step {request.step}; there are: {steps}")
        return self._take(reader, path)


def _read_unless(void: Collection[pb.Void], path: Path) -> Checkpoint:
    """A checkpoint (Refused: it is damaged, or void)."""
    checkpoint = read_checkpoint(path)
    if is_void(CheckpointStore.describe(checkpoint), void):
        raise Refused(
            f"checkpoint {path}: of step {checkpoint.step}, generation {checkpoint.generation}: a worker that was "
            "found faulty since may have had a part in it"
        )
    return checkpoint


def _written(job: str, generation: int, step: int, path: Path, model_sha256: str) -> pb.CheckpointWritten:
    return pb.CheckpointWritten(
        job=job, generation=generation, step=step, path=str(path), model_sha256=model_sha256
    )


def _read_number(path: Path, most: int, meaning: str) -> int:
    """The number in a file, 0 if there is none (Refused: it is damaged)."""
    try:
        number = int(path.read_text())
        if not 0 <= number <= most:
            raise ValueError(f"{number} is not from 0 to {most}")
        return number
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: {error}; expected one number, {meaning}") from None


def _temporary(path: Path, number: int) -> Path:
    """A file beside `path` with this number, on the disk (OSError)."""
    temporary = path.with_name(f".{path.name}")
    with temporary.open("w") as file:
        file.write(f"{number}\n")
        file.flush()
        os.fsync(file.fileno())
    return temporary


def _place(temporary: Path, path: Path) -> None:
    """Give a file its name, durably (OSError)."""
    temporary.replace(path)
    sync_folder(path.parent)
