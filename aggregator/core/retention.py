"""Which ended jobs are surplus, given limits, and what keeps one all the same.

Two questions are apart: `select_surplus` looks at limits alone, `Protection` at who still needs a checkpoint. So what
is protected never makes anything else go, and a stricter limit never keeps what a looser one lets go.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any, NamedTuple

_MODEL_FILE = "model.safetensors"
_STEP_FOLDER = re.compile(r"step-([0-9]{8,10})")


class Part(Enum):
    """What of an ended job goes; the value is its name in options.

    The newest checkpoint is a job's result, so it goes only with the job.
    """

    JOBS = "jobs"
    """Record, log, history of figures and all checkpoints."""
    CHECKPOINTS = "checkpoints"
    """All checkpoints but the newest."""
    LOGS = "logs"
    """The log."""


@dataclass(frozen=True)
class Limits:
    """Limits on ended jobs; None for no such limit.

    Attributes:
        older_than_seconds: time since the end of a job after which it is surplus.
        keep: number of newest jobs to keep.
        max_bytes: size of the newest jobs to keep, in bytes. The newest one alone stays whatever its size: a limit
            below the size of one job would else remove each result as soon as it is there.
    """

    older_than_seconds: float | None = None
    keep: int | None = None
    max_bytes: int | None = None

    @property
    def are_given(self) -> bool:
        """Whether there is a limit at all."""
        return (self.older_than_seconds, self.keep, self.max_bytes) != (None, None, None)


class EndedJob(NamedTuple):
    """An ended job as the limits see it.

    Attributes:
        id: the job's id.
        ended_seconds: Unix time of its end.
        size_bytes: size of what would go.
    """

    id: str
    ended_seconds: float
    size_bytes: int


def select_surplus(
    jobs: Sequence[EndedJob], limits: Limits, now_seconds: float, grace_seconds: float = 0.0
) -> list[EndedJob]:
    """Return the jobs that at least one limit lets go, newest first.

    Args:
        jobs: ended jobs, the newest first.
        limits: the limits.
        now_seconds: Unix time.
        grace_seconds: time since its end in which a job is never surplus.
    """
    surplus = []
    kept_bytes = 0
    for place, job in enumerate(jobs):
        kept_bytes += job.size_bytes
        age_seconds = now_seconds - job.ended_seconds
        exceeded = (
            (limits.older_than_seconds is not None and age_seconds > limits.older_than_seconds)
            or (limits.keep is not None and place >= limits.keep)
            or (limits.max_bytes is not None and place > 0 and kept_bytes > limits.max_bytes)
        )
        # A job that ended in the future has an age again only when the clock, which was set back, gets there.
        if exceeded and not 0 <= age_seconds < grace_seconds:
            surplus.append(job)
    return surplus


class StoredCheckpoint(NamedTuple):
    """A checkpoint on disk.

    Attributes:
        step: its step.
        size_bytes: size of its files.
        model_sha256: SHA-256 of its model; empty if it is not known.
        in_use: whether it is being read or written.
        tokenizer_sha256: SHA-256 of its tokenizer; empty if it has none, or it is not known.
    """

    step: int
    size_bytes: int
    model_sha256: str = ""
    in_use: bool = False
    tokenizer_sha256: str = ""


@dataclass(frozen=True)
class Needs:
    """What a job that has not ended reads of other jobs' checkpoints.

    Attributes:
        job: the job's id.
        checkpoints: job and step of the checkpoint that it starts from, and of each folder that a path of its spec
            names, wherever that path begins.
        model_sha256: SHA-256 of the model that it starts from; empty for none.
    """

    job: str
    checkpoints: frozenset[tuple[str, int]] = frozenset()
    model_sha256: str = ""


def find_needs(job: str, spec_json: str) -> Needs:
    """Return what a job reads of other jobs' checkpoints.

    Only the names at a path's end count: hosts may see the same folder at different paths. A path that leads to a
    checkpoint by a symbolic link has other names; the model's SHA-256 stands for it.
    """
    try:
        spec = json.loads(spec_json)
    except (ValueError, RecursionError):
        return Needs(job)  # such a job fails before it reads a file
    start, data = _mapping(spec, "pretrained"), _mapping(spec, "data")
    found = set()
    files = data.get("files")
    corpora = (
        [each.get("path") for each in files if isinstance(each, dict)] if isinstance(files, list) else []
    )
    for path in (start.get("path"), data.get("tokenizer_path"), *corpora):
        parts = [part for part in str(path or "").split("/") if part not in ("", ".")]
        for folder, name in pairwise(parts):
            if match := _STEP_FOLDER.fullmatch(name):
                found.add((folder, int(match[1])))
    earlier = _mapping(spec, "start_from")
    if isinstance(earlier.get("job"), str) and isinstance(earlier.get("step"), int):
        found.add((earlier["job"], earlier["step"]))
    sha256 = _mapping(start, "files").get(_MODEL_FILE, "")
    return Needs(job, frozenset(found), sha256 if isinstance(sha256, str) else "")


def _mapping(values: object, key: str) -> dict[str, Any]:
    found = values.get(key) if isinstance(values, dict) else None
    return found if isinstance(found, dict) else {}


class Protection:
    """The checkpoints that live jobs need.

    Args:
        needs: what each job that has not ended needs.
    """

    def __init__(self, needs: Iterable[Needs]) -> None:
        self._by_place: dict[tuple[str, int], str] = {}
        self._by_model: dict[str, str] = {}
        for each in needs:
            self._by_place.update(dict.fromkeys(each.checkpoints, each.job))
            if each.model_sha256:
                self._by_model[each.model_sha256] = each.job

    def why_kept(self, job: str, checkpoint: StoredCheckpoint) -> str:
        """Return why a checkpoint must stay, as a part of a line; empty if it may go."""
        reader = self._by_place.get((job, checkpoint.step)) or self._by_model.get(checkpoint.model_sha256)
        if reader is not None:
            return f"job {reader} starts from its checkpoint of step {checkpoint.step}"
        return (
            f"its checkpoint of step {checkpoint.step} is being read or written" if checkpoint.in_use else ""
        )

    def why_job_kept(self, job: str, checkpoints: Iterable[StoredCheckpoint]) -> str:
        """Return why a job with these checkpoints must stay as a whole; empty if it may go."""
        return next(filter(None, (self.why_kept(job, each) for each in checkpoints)), "")

    def select_removable(
        self, job: str, checkpoints: Collection[StoredCheckpoint], result_step: int | None
    ) -> tuple[list[StoredCheckpoint], str]:
        """Return the checkpoints of an ended job that may go while the job stays, and why none may; empty if some may.

        Args:
            job: the job's id.
            checkpoints: all its checkpoints.
            result_step: step of the checkpoint that the job's record names; None if it names none. This one and the
                newest are the result.
        """
        newest = max((each.step for each in checkpoints), default=None)
        surplus = [each for each in checkpoints if each.step not in (newest, result_step)]
        removable = [each for each in surplus if not self.why_kept(job, each)]
        return removable, "" if removable else self.why_job_kept(job, surplus)
