"""Listing and removal of ended jobs' checkpoints, by order of the aggregator.

A checkpoint, or a job's whole folder, first gets the name of something removed, durably. Then its files are deleted.
What a crash leaves in between is deleted at the next start. Symbolic links are never followed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from optimizer.checkpoint_use import CheckpointUse
from protos import cluster_pb2 as pb
from services.checkpoints.format import MODEL_FILE, STATE_FILE, State
from services.checkpoints.hugging_face import TOKENIZER_FILE
from services.checkpoints.prune import mark_removed
from services.checkpoints.read import checkpoints_by_step, list_checkpoints
from services.checkpoints.write import REMOVED, Fence
from services.errors import Failed, Refused
from services.instrumentation.failpoints import hit_failpoint
from services.printable import printable_path


class CheckpointRemoval:
    """Removes checkpoints below one folder. All methods block; any thread may call.

    Args:
        root: Path of the folder, with a folder for each job.
        folder_of: returns a job's folder; raises Refused for an id that is none.
        use: who reads and writes checkpoints.
        fence: context manager entered while a folder is renamed, see `CheckpointStore`.
    """

    def __init__(
        self, root: Path, folder_of: Callable[[str], Path], use: CheckpointUse, fence: Fence
    ) -> None:
        self._root = root
        self._folder_of = folder_of
        self._use = use
        self._fence = fence

    def find(self, request: pb.ListCheckpointsRequest) -> Iterator[pb.StoredCheckpoint]:
        """Yield the checkpoints of some jobs, oldest first within a job.

        Raises:
            Refused: a job's id is malformed.
        """
        for job in request.jobs:
            folder = self._folder_of(job)
            try:
                problem = _find_link(folder)
                for step, path in () if problem else checkpoints_by_step(folder).items():
                    hashes = _recorded_hashes(path) if request.hashes else {}
                    yield pb.StoredCheckpoint(
                        job=job,
                        step=step,
                        bytes=_size_bytes(path),
                        model_sha256=hashes.get(MODEL_FILE, ""),
                        in_use=self._use.is_read(path),
                        tokenizer_sha256=hashes.get(TOKENIZER_FILE, ""),
                    )
            except OSError as error:
                problem = f"its checkpoints can't be listed: {error.strerror or error}"
            if problem:
                yield pb.StoredCheckpoint(job=job, problem=problem)

    def remove(self, request: pb.RemoveCheckpointsRequest) -> pb.RemoveCheckpointsReply:
        """Remove some checkpoints of a job, or all that there is of it.

        Returns:
            The sizes of what was removed, and why something was kept. A repeated order removes nothing more.

        Raises:
            Refused: the job's id is malformed.
            Failed: the disk failed, or another aggregator took over. What was renamed is deleted at the next start.
        """
        folder = self._folder_of(request.job)
        problem = _find_link(folder)
        if problem:
            return pb.RemoveCheckpointsReply(kept=problem)
        try:
            if request.all:
                return self._remove_job(request.job, folder)
            return self._remove_steps(folder, set(request.steps))
        except OSError as error:
            raise Failed(
                f"{printable_path(folder)}: checkpoints not removed: {error.strerror or error}"
            ) from error

    def _remove_job(self, job: str, folder: Path) -> pb.RemoveCheckpointsReply:
        reply = pb.RemoveCheckpointsReply()
        if not folder.is_dir():
            return reply
        for path in list_checkpoints(folder):
            reply.checkpoints += 1
            reply.bytes += _size_bytes(path)
        with self._fence():
            aside = self._use.unless_job_used(job, folder, partial(mark_removed, folder))
        if aside is None:
            return pb.RemoveCheckpointsReply(kept="one of its checkpoints is being read or written")
        _delete(aside)
        return reply

    def _remove_steps(self, folder: Path, steps: set[int]) -> pb.RemoveCheckpointsReply:
        reply = pb.RemoveCheckpointsReply()
        for step, path in checkpoints_by_step(folder).items():
            if step not in steps:
                continue
            size_bytes = _size_bytes(path)
            with self._fence():
                aside = self._use.unless_read(path, partial(mark_removed, path))
            if aside is None:
                reply.kept = f"its checkpoint of step {step} is being read"
                continue
            _delete(aside)
            reply.checkpoints += 1
            reply.bytes += size_bytes
        return reply

    def finish(self) -> list[str]:
        """Delete what a crash has left of removed checkpoints and jobs.

        Returns:
            One line for each folder that could not be deleted.
        """
        problems = []
        try:
            leftovers = list(_leftovers(self._root))
            for folder in self._root.iterdir() if self._root.is_dir() else ():
                if folder.is_dir() and not folder.is_symlink() and not folder.name.startswith("."):
                    leftovers += _leftovers(folder)
        except OSError as error:
            return [
                f"{printable_path(self._root)}: removed checkpoints not listed: {error.strerror or error}"
            ]
        for path in leftovers:
            try:
                shutil.rmtree(path)
            except OSError as error:
                problems.append(f"{printable_path(path)}: not deleted: {error.strerror or error}")
        return problems


def _delete(aside: Path) -> None:
    hit_failpoint("optimizer.prune.marked")
    shutil.rmtree(aside)


def _leftovers(folder: Path) -> Iterable[Path]:
    return folder.glob(f".*{REMOVED}")


def _find_link(folder: Path) -> str:
    """Return why nothing in a job's folder may be removed; empty if it may."""
    if folder.is_symlink():
        return "its folder is a symbolic link, which is not followed"
    link = next((each for each in list_checkpoints(folder) if each.is_symlink()), None)
    return "" if link is None else f"its {link.name} is a symbolic link, which is not followed"


def _size_bytes(path: Path) -> int:
    return sum(each.lstat().st_size for each in path.iterdir())


def _recorded_hashes(path: Path) -> dict[str, str]:
    """Return the SHA-256s that a checkpoint records, by file; none if it is damaged, so no job starts from it."""
    try:
        return {name: record.sha256 for name, record in State.read(path / STATE_FILE).files.items()}
    except (Refused, ValueError):
        return {}
