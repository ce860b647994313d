"""What a worker has of a job's layout: all of it, or the parts of its stages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from services.tensors.layout_parts import LayoutParts, join_parts
from worker.remote_step import RemoteStep


@dataclass(frozen=True)
class LayoutShare:
    """A worker's share of a layout. Its arrays have the elements of the share alone, one part after another.

    Attributes:
        parts: parts whose gradients it computes.
        shared: other parts whose weights it needs too, for tied embeddings.
        entries: indices of the layout's entries that it loads, in order.
    """

    parts: LayoutParts
    shared: LayoutParts
    entries: tuple[int, ...]

    @classmethod
    def of(cls, step: RemoteStep) -> LayoutShare:
        """Return the share of what is built on a mesh."""
        layout = step.layout
        parts = LayoutParts((own.start, own.stop) for own in step.ranges.values())
        others = (layout.entries[index] for index in step.loaded)
        shared = [(each.offset, each.stop) for each in others if parts.find(each.offset) is None]
        return cls(parts, LayoutParts(shared), step.loaded)

    @cached_property
    def loads(self) -> LayoutParts:
        """Parts whose weights it needs."""
        return join_parts([self.parts, self.shared])
