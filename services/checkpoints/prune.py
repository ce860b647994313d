"""Which checkpoints a job no longer needs, and removing one so that it is whole or gone, whenever the power goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.checkpoints.read import list_checkpoints
from services.checkpoints.write import REMOVED, sync_folder


def list_surplus(root: Path, written: int, *, keep_last: int, keep_every: int) -> list[Path]:
    """The checkpoints that may go, oldest first.

    Those of later steps than `written` stay: a job that went back found them damaged, and they are no measure of what
    is intact.

    Args:
        root: folder of the job's checkpoints.
        written: step of the one that has just been written; it stays.
        keep_last: so many stay, it among them; 0: all.
        keep_every: of each so many steps the first one stays; 0: none for that. Step 0 always does.
    """
    held = {_step(path): path for path in list_checkpoints(root)}
    return [
        held[step] for step in surplus_steps(list(held), written, keep_last=keep_last, keep_every=keep_every)
    ]


def surplus_steps(steps: Sequence[int], written: int, *, keep_last: int, keep_every: int) -> list[int]:
    """Of checkpoints of these steps, in ascending order, those that may go; see `list_surplus`."""
    made = [step for step in steps if step <= written]
    if not keep_last:
        return []
    kept, spans = set(made[-keep_last:]), {0}
    for step in made:
        span = step // keep_every if keep_every else 0
        if step == 0 or span not in spans:
            kept.add(step)
        spans.add(span)
    return [step for step in made if step not in kept]


def mark_removed(path: Path) -> Path:
    """Make a checkpoint one no longer, durably, before the first of its files goes; the folder that it is in then.

    What is left of such a folder by a crash is removed by whoever writes the next checkpoint.

    Raises:
        OSError: the disk refused; the checkpoint is as it was, or set aside.
    """
    aside = path.with_name(f".{path.name}{REMOVED}")
    path.rename(aside)
    sync_folder(path.parent)
    return aside


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
