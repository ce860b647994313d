"""Tracker that writes event files of TensorBoard.

tensorboardX writes them on the calling thread here: its own thread would hide a full disk.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from services.tracking.points import Point
from services.tracking.tracker import Mark, Run


class TensorBoardFolder:
    """Event files in the folder `tensorboard`; each time it is opened begins another one.

    Args:
        run: the job.

    Raises:
        OSError: the files can't be opened.
    """

    def __init__(self, run: Run) -> None:
        folder = run.folder / "tensorboard"
        folder.mkdir(exist_ok=True)
        self._mark = Mark(run.folder / "tensorboard.mark")
        self.written = self._mark.written
        # The rest of the name is the second and the host, which a restart may share.
        self._writer = EventsWriter(str(folder / "events"), filename_suffix=f".{uuid.uuid4().hex[:8]}")

    def write(self, points: Sequence[Point]) -> None:
        """Write a summary for each point."""
        for point in points:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            event = Event(wall_time=point.unix_seconds, step=point.step, summary=Summary(value=values))
            self._writer.write_event(event)
        self._writer.flush()
        self.written.add(points)
        self._mark.save()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
