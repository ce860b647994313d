"""A tracker of one job: takes its points in order, and knows which it has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from services.tracking.points import Point, PointKind

_MOST_MARK_BYTES = 4096


@dataclass(frozen=True)
class Run:
    """A job as trackers see it.

    Attributes:
        job: id of the job.
        project: name of the job, which tt-train uses as the project of wandb.
        folder: folder for the tracker's files, which exists.
        settings: the complete job, as JSON values.
    """

    job: str
    project: str
    folder: Path
    settings: Mapping[str, Any]


class WrittenSteps:
    """The newest step of each kind of point that a tracker has.

    Steps that are computed again, since the job went back to a checkpoint, are not written again: no format has to be
    rewritten, and none gets a step twice.
    """

    def __init__(self, newest: Mapping[str, int] | None = None) -> None:
        self.newest = dict(newest or {})

    def select_new(self, points: Sequence[Point]) -> list[Point]:
        """Return the points that are newer than all of their kind before them, written or not."""
        seen, new = WrittenSteps(self.newest), []
        for point in points:
            if point.step > seen.newest.get(point.kind, -1):
                seen.raise_to(point.kind, point.step)
                new.append(point)
        return new

    def add(self, points: Sequence[Point]) -> None:
        """Note that points have been written."""
        for point in points:
            self.raise_to(point.kind, point.step)

    def raise_to(self, kind: PointKind, step: int) -> None:
        """Note that a point of this kind and step has been written."""
        self.newest[kind] = max(step, self.newest.get(kind, -1))


class Tracker(Protocol):
    """A tracker that is open. All calls come from one thread.

    Attributes:
        written: the steps that it has, also from before a restart.
    """

    written: WrittenSteps

    def write(self, points: Sequence[Point]) -> None:
        """Write points, in the order of their events. Any exception means that they may be lost."""

    def close(self) -> None:
        """Finish the job's run, or leave it so that it can be opened again."""


class Mark:
    """File that remembers the steps of a tracker whose own format can't be asked for them.

    Args:
        path: path of the file.

    Attributes:
        written: the steps.
        run_id: id that the tracker's service gave the run; empty for none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.written, self.run_id = WrittenSteps(), ""
        try:
            with path.open("rb") as file:
                stored = json.loads(file.read(_MOST_MARK_BYTES))
            self.written = WrittenSteps({str(kind): int(step) for kind, step in stored["written"].items()})
            self.run_id = str(stored["run_id"])
        except FileNotFoundError:
            return
        except (ValueError, TypeError, KeyError, AttributeError):
            return  # damaged by a power loss: steps may be written twice, and none is lost

    def save(self) -> None:
        """Write the file, by a rename."""
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps({"written": self.written.newest, "run_id": self.run_id}))
        temporary.replace(self._path)
