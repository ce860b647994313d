"""What each worker of a pipeline was told to build, and which parts of the layout it has built."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from protos.cluster_pb2 import Ready
from services.errors import Refusal
from services.pipeline.split import StageRun
from services.tensors.layout_parts import LayoutParts, Piece, check_cover, join_parts, parse_parts

NOTHING = LayoutParts(())
"""The parts of a worker that has built nothing."""


class Build:
    """What one worker has been told to build, and what it has built.

    Attributes:
        ordered: the stages of its last Join.
        parts: the parts of the layout whose gradients it sends; None until it is ready.
        loads: the parts of the layout whose weights it is sent; none until it is ready.
        elements: number of elements of the whole layout; 0 until it is ready.
    """

    def __init__(self, ordered: StageRun) -> None:
        self.ordered = ordered
        self.parts: LayoutParts | None = None
        self.loads = NOTHING
        self.elements = 0


class BuiltStages:
    """The builds of a job's workers, by session."""

    def __init__(self) -> None:
        self._builds: dict[int, Build] = {}

    def order(self, session: int, stages: StageRun) -> bool:
        """Record that a worker is to build stages; return False if that is what it was told last."""
        if self.ordered(session) == stages:
            return False
        self._builds[session] = Build(stages)
        return True

    def ordered(self, session: int) -> StageRun | None:
        """Return the stages that a worker was told last; None if it was told none."""
        build = self._builds.get(session)
        return None if build is None else build.ordered

    def forget(self, session: int) -> None:
        """Forget what a worker was told."""
        self._builds.pop(session, None)

    def keep_only(self, sessions: Collection[int]) -> None:
        """Forget all other workers."""
        for gone in self._builds.keys() - sessions:
            del self._builds[gone]

    def note(self, session: int, ready: Ready) -> Refusal | None:
        """Record which parts of the layout a worker has built; return why they can't be, None if they can."""
        parts = parse_parts(ready.parts, ready.elements)
        shared = parse_parts(ready.shared, ready.elements)
        if isinstance(parts, Refusal):
            return parts
        if isinstance(shared, Refusal):
            return shared
        build = self._builds[session]
        build.parts, build.loads, build.elements = parts, join_parts([parts, shared]), ready.elements
        return None

    def elements(self, session: int) -> int:
        """Return the number of elements of the layout that a worker has built; 0 if it has built none."""
        build = self._builds.get(session)
        return 0 if build is None else build.elements

    def loads(self, session: int) -> LayoutParts:
        """Return the parts of the layout whose weights a worker needs; none before it is ready."""
        build = self._builds.get(session)
        return NOTHING if build is None else build.loads

    def check_cover(self, sessions: Sequence[int]) -> Refusal | None:
        """Return why workers that have built all stages can't compute together; None if they can."""
        builds = [self._builds[session] for session in sessions]
        sizes = sorted({each.elements for each in builds})
        if len(sizes) > 1:
            return Refusal(
                f"the stages' layouts have {sizes[0]} and {sizes[-1]} elements, expected the same number; "
                "give all hosts the same version of Tiermesh"
            )
        return check_cover([each.parts for each in builds if each.parts is not None], sizes[0])

    def check_piece(self, session: int, piece: Piece) -> Refusal | None:
        """Return why a worker can't send this piece of a chunk; None if it is one of its parts of the layout."""
        build = self._builds.get(session)
        if build is not None and build.parts is not None and build.parts.has(piece):
            return None
        found = f"elements {piece.offset} to {piece.offset + piece.elements} of chunk {piece.chunk}"
        return Refusal(f"{found} are no piece of the parts of the layout that this worker has built")


def stages_of(ready: Ready) -> StageRun:
    """Return the stages that a worker has built."""
    return StageRun(ready.first_stage, ready.stages)
