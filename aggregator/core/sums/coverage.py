"""Coverage of a step's sum: for each chunk, the nodes of the reduction tree that have arrived.

The stored nodes of a chunk never overlap. Two siblings merge into their parent at once. A chunk whose root is reached
is finished: it is passed on, and its payload is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.tensors.chunk_set import ChunkSet
from services.tensors.reduction_tree import Node, path_to


@dataclass
class Arrival:
    """The changes that the arrival of one node's chunk makes. Those of two chunks may be equal.

    Attributes:
        duplicate: everything it brings is covered already, so there is nothing to do.
        superseded: stored nodes within the new one, whose payloads must be dropped.
        merges: additions (left, right, parent) to make, in this order.
        done: the last merge, or the node itself, reached the root, and the gate does not hold it back.
    """

    duplicate: bool = False
    superseded: list[Node] = field(default_factory=list)
    merges: list[tuple[Node, Node, Node]] = field(default_factory=list)
    done: bool = False


class Coverage:
    """Coverage of one step: `chunks` chunks, each summed up the tree of `root`.

    No method loops over the tree's leaves. Only `missing` and `mark_all_done_except` may take time for each stored
    chunk.

    Attributes:
        gated: whether the last chunk is held back, so that the optimizer can't COMMIT yet.
    """

    def __init__(self, root: Node, chunks: int, *, gated: bool = False) -> None:
        self.root = root
        self.chunks = chunks
        self.gated = gated
        self._stored: dict[int, set[Node]] = {}
        self._chunks_of: dict[Node, set[int]] = {}  # the same by node
        self._done = ChunkSet(chunks)

    @property
    def complete(self) -> bool:
        """Whether every chunk has reached the root."""
        return len(self._done) == self.chunks

    def stored_nodes(self) -> set[tuple[int, Node]]:
        """Return the (chunk, node) of every payload that is stored now."""
        return {(chunk, node) for chunk, nodes in self._stored.items() for node in nodes}

    def done_in_order(self, start: int) -> int:
        """Return the first position from `start` whose chunk is not finished.

        Positions follow the agreed sending order: 0 is the last chunk of the layout.
        """
        return self.chunks - 1 - self._done.find_last_absent(self.chunks - start)

    def add(self, node: Node, chunk: int) -> Arrival:
        """Count the arrival of `chunk` of `node`."""
        if self.covers(node, chunk):
            return Arrival(duplicate=True)
        stored = self._stored.setdefault(chunk, set())
        arrival = Arrival(superseded=sorted(other for other in stored if node.contains(other)))
        for other in arrival.superseded:
            self._remove(other, chunk)
        for parent, sibling in reversed(path_to(self.root, node)):
            if sibling not in stored:
                self._store(node, chunk)
                return arrival
            self._remove(sibling, chunk)
            arrival.merges.append((min(node, sibling), max(node, sibling), parent))
            node = parent
        if self.gated and len(self._done) == self.chunks - 1:
            self._store(node, chunk)
            return arrival
        del self._stored[chunk]
        self._done.add(chunk)
        arrival.done = True
        return arrival

    def _store(self, node: Node, chunk: int) -> None:
        self._stored[chunk].add(node)
        self._chunks_of.setdefault(node, set()).add(chunk)

    def _remove(self, node: Node, chunk: int) -> None:
        self._stored[chunk].discard(node)
        self._chunks_of[node].discard(chunk)

    def open_gate(self) -> int | None:
        """Open the gate and return the chunk it held back, which is finished now; None if it held back none."""
        self.gated = False
        for chunk in self._chunks_of.pop(self.root, ()):
            del self._stored[chunk]
            self._done.add(chunk)
            return chunk
        return None

    def covers(self, node: Node, chunk: int) -> bool:
        """Return whether nothing of `node` is missing for `chunk`."""
        if chunk in self._done:
            return True
        stored = self._stored.get(chunk, ())
        return any(other in stored for other in self._with_ancestors(node)) if stored else False

    def _with_ancestors(self, node: Node) -> list[Node]:
        return [*(parent for parent, _ in path_to(self.root, node)), node]

    def misses(self, node: Node) -> bool:
        """Return whether something of `node` is missing for any chunk."""
        # The stored nodes of a chunk don't overlap, so no chunk is counted twice.
        covering = (len(self._chunks_of.get(other, ())) for other in self._with_ancestors(node))
        return len(self._done) + sum(covering) < self.chunks

    def missing(self, node: Node) -> list[range]:
        """Return the chunks for which something of `node` is missing, as runs in ascending order.

        If there are very many runs, they contain chunks for which nothing is missing too.
        """
        covering = [found for other in self._with_ancestors(node) if (found := self._chunks_of.get(other))]
        if not covering:
            return self._done.gaps()
        missing = self._done.complement()
        for chunks in covering:
            for chunk in chunks:
                missing.discard(chunk)
        return missing.runs()

    def mark_all_done_except(self, missing: ChunkSet) -> list[tuple[int, Node]]:
        """Count all other chunks as finished, since the optimizer has their sums.

        Returns:
            The stored (chunk, node) to drop.
        """
        if len(missing) >= self.chunks:
            return []
        self._done.update(missing.complement())
        found = [chunk for chunk in self._stored if chunk not in missing]
        dropped = [(chunk, node) for chunk in found for node in self._stored[chunk]]
        for chunk, node in dropped:
            self._chunks_of[node].discard(chunk)
        for chunk in found:
            del self._stored[chunk]
        return sorted(dropped)

    def reopen(self, chunks: ChunkSet) -> ChunkSet:
        """Count chunks as missing, since the optimizer lost their sums; return those that had been passed on."""
        lost = self._done.intersection(chunks)
        self._done.remove(lost)
        return lost
