"""Weights that the shards may send a worker: what the core has released, as orders to each shard. Pure."""

from __future__ import annotations

from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.protocol.versions import Version
from services.tensors.layout_parts import LayoutParts


class ReleasedWeights:
    """Weights that the shards may send one worker.

    The core releases chunks, or the pieces that the worker's parts of the layout have of them, in the order of the
    layout. A shard knows that order, so it is told a number alone.

    Args:
        session: number of the worker's session.
        shards: number of shards.
    """

    def __init__(self, session: int, shards: int) -> None:
        self._session = session
        self._version: Version | None = None
        self._parts: LayoutParts | None = None
        self._last = (0, 0)  # chunk and offset of the newest one
        self._limits = [0] * shards
        self._restarts = [False] * shards
        self._changed: set[int] = set()

    def release(self, header: ChunkHeader, parts: LayoutParts | None) -> None:
        """Let a shard send a chunk, or a piece of one.

        Args:
            header: its header.
            parts: parts of the layout that the worker loads; None for all of it.
        """
        shards, place = len(self._limits), (header.index, header.offset)
        version = Version(header.generation, header.step)
        same_version = version == self._version
        if not same_version or parts != self._parts or place <= self._last:
            # From the first again: of a new version, or to a worker that builds the job, or other stages of it, again.
            self._version, self._parts = version, parts
            self._limits, self._restarts = [0] * shards, [same_version] * shards
        self._last = place
        self._limits[header.index % shards] += 1
        self._changed.add(header.index % shards)

    def take_orders(self) -> list[tuple[int, pb.SendUpTo]]:
        """Return the orders that tell shards of what was released since the last call, with the shards' indices."""
        changed, self._changed = self._changed, set()
        return [(shard, self._order(shard)) for shard in sorted(changed)]

    def _order(self, shard: int) -> pb.SendUpTo:
        assert self._version is not None
        runs = () if self._parts is None else self._parts.runs
        order = pb.SendUpTo(
            session=self._session,
            generation=self._version.generation,
            step=self._version.step,
            limit=self._limits[shard],
            restart=self._restarts[shard],
            parts=[cluster.LayoutPart(offset=start, elements=stop - start) for start, stop in runs],
        )
        self._restarts[shard] = False
        return order
