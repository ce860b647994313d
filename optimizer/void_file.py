"""Which checkpoints of a job were declared void, kept beside them.

The job's record says so too, but a queue that was restored from a backup may be from before it was declared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from protos.cluster_pb2 import Void
from services.durable_files import replace_file
from services.errors import Refused
from services.input_files import NoSuchFile, read_input_file
from services.printable import printable_path

_MOST_BYTES = 1 << 16
_NO_STEP = -1
"""Last step that counts, in the file, where not even the initial weights do."""


class VoidFile:
    """The file at a path; it need not exist."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Void]:
        """Return what was declared void; nothing if there is no file.

        Raises:
            Refused: the file is damaged.
        """
        try:
            pairs = json.loads(read_input_file("", self._path, _MOST_BYTES))
            return [_void(generation, step) for generation, step in pairs]
        except NoSuchFile:
            return []
        except (ValueError, TypeError, RecursionError):
            raise Refused(
                f"{printable_path(self._path)}: damaged, expected pairs of generation and step; put back a copy, or "
                "remove it if no worker was found faulty in this job"
            ) from None

    def add(self, void: Iterable[Void]) -> list[Void]:
        """Store what is declared void beside what was before, durably if it is new; return both.

        Raises:
            Refused: the file is damaged.
            OSError: it can't be written.
        """
        before = set(map(_pair, self.read()))
        after = _without_contained(before | set(map(_pair, void)))
        if after != before:
            replace_file(self._path, json.dumps(sorted(after)).encode())
        return [_void(generation, step) for generation, step in sorted(after)]


def _pair(void: Void) -> tuple[int, int]:
    return void.generation, void.step if void.HasField("step") else _NO_STEP


def _void(generation: int, step: int) -> Void:
    return Void(generation=generation, step=None if step == _NO_STEP else step)


def _without_contained(void: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the pairs without those that another one contains: a later generation, from an earlier step on."""
    return {
        (generation, step)
        for generation, step in void
        if not any(
            other != (generation, step) and other[0] >= generation and other[1] <= step for other in void
        )
    }
