"""What an optimizer keeps on disk per job: its checkpoints, and the highest generation it ever gave out."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from protos import cluster_pb2 as pb
from services.checkpoints import (
    Checkpoint,
    list_checkpoints,
    newest_checkpoint,
    newest_that,
    set_aside,
    surplus,
    verify_checkpoint,
    write_checkpoint,
)
from services.config import JobConfig
from services.errors import Failed, Refused
from services.failpoints import point
from services.plan import LAST_GENERATION
from services.tensors.kernels import Float32Array
from services.tensors.layout import Layout

PART_BYTES = 1 << 20
"""Size of the pieces in which a checkpoint's files are sent."""
_GENERATION_FILE = "generation"


class JobStore:
    """The folder of all jobs' checkpoints; each job has one named by its id."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
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
        try:
            generation = int(path.read_text())
            if not 0 <= generation <= LAST_GENERATION:
                raise ValueError(f"{generation} is not from 0 to {LAST_GENERATION}")
            return generation
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            raise Refused(
                f"{path}: {error}; expected one number, at least the generation of every checkpoint"
            ) from None

    def save_generation(self, job: str, generation: int) -> None:
        """Put a generation on disk: when this returns, it survives power loss.

        Raises:
            Failed: the disk refused.
        """
        path = self._folder(job) / _GENERATION_FILE
        temporary = path.with_name(f".{_GENERATION_FILE}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("w") as file:
                file.write(f"{generation}\n")
                file.flush()
                os.fsync(file.fileno())
            point("optimizer.generation.before")
            temporary.replace(path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            point("optimizer.generation.after")
        except OSError as error:
            raise Failed(f"{path}: not written: {error.strerror or error}") from None

    def newest(self, job: str) -> tuple[Checkpoint | None, list[str]]:
        """The newest intact checkpoint, and what to tell of newer ones (Refused: there are some, none intact)."""
        return newest_checkpoint(self._folder(job))

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
        """Write a checkpoint; what to tell of it, and its size in bytes (Failed: the disk refused)."""
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
        )
        size_bytes = sum(file.stat().st_size for file in info.path.iterdir())
        return _written(job, generation, step, info.path, info.model_sha256), size_bytes

    def prune(self, job: str, written: int, *, keep_last: int, keep_every: int) -> list[str]:
        """Remove what a job need not keep now that step `written` is on the disk; a line for each that resists.

        What is being read stays until the next time.
        """
        problems = []
        try:
            for path in surplus(self._folder(job), written, keep_last=keep_last, keep_every=keep_every):
                try:
                    with self._lock:
                        if path in self._reading.values():
                            continue
                        aside = set_aside(path)
                    shutil.rmtree(aside)
                except OSError as error:
                    problems.append(f"checkpoint {path}: not removed: {error.strerror or error}")
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
            newest, _ = newest_that(partial(self._take, reader), folder)
            if newest is None:
                raise Refused(f"job {request.job} has no checkpoint yet")
            return newest
        path = folder / f"step-{request.step:08d}"
        held = list_checkpoints(folder)
        if path not in held:
            steps = ", ".join(str(int(each.name[5:])) for each in held) or "none"
            raise Refused(f"job {request.job} has no checkpoint of step {request.step}; there are: {steps}")
        return self._take(reader, path)


def _written(job: str, generation: int, step: int, path: Path, model_sha256: str) -> pb.CheckpointWritten:
    return pb.CheckpointWritten(
        job=job, generation=generation, step=step, path=str(path), model_sha256=model_sha256
    )
