"""Removal of checkpoints that a job no longer needs, such that each is complete or gone even after a power cut."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.checkpoints.read import checkpoints_by_step
from services.checkpoints.write import REMOVED
from services.durable_files import sync_folder


def list_surplus(root: Path, written: int, *, keep_last: int, keep_every: int) -> list[Path]:
    """Return the checkpoints that may be removed, oldest first.

    Checkpoints of steps after `written` are kept and not counted: the job went back because they are damaged.

    Args:
        root: folder of the job's checkpoints.
        written: step of the checkpoint that has just been written, which is kept.
        keep_last: number of newest checkpoints to keep, including that one; 0 keeps all.
        keep_every: length of a span of steps. The first checkpoint of each span is kept; 0 means no spans.
            The first one of all is always kept: step 0, or the one that a job started from.
    """
    paths = checkpoints_by_step(root)
    return [
        paths[step]
        for step in surplus_steps(list(paths), written, keep_last=keep_last, keep_every=keep_every)
    ]


def surplus_steps(steps: Sequence[int], written: int, *, keep_last: int, keep_every: int) -> list[int]:
    """Return those of the given steps, in ascending order, whose checkpoints may be removed; see `list_surplus`."""
    made = [step for step in steps if step <= written]
    if not keep_last:
        return []
    kept, spans = {*made[:1], *made[-keep_last:]}, {0}
    for step in made:
        span = step // keep_every if keep_every else 0
        if span not in spans:
            kept.add(step)
        spans.add(span)
    return [step for step in made if step not in kept]


def mark_removed(path: Path) -> Path:
    """Rename a checkpoint's folder durably, so that it is no checkpoint before its first file is deleted.

    If the process crashes before it deletes the folder, `write_checkpoint` does so next time.

    Returns:
        The folder's new path.

    Raises:
        OSError: the disk failed. The checkpoint is unchanged or renamed.
    """
    renamed = path.with_name(f".{path.name}{REMOVED}")
    path.rename(renamed)
    sync_folder(path.parent)
    return renamed
