"""Coverage of a step's sum: for each chunk, the nodes of the reduction tree that have arrived.

The stored nodes of a chunk never overlap. Two siblings merge into their parent at once. A chunk whose root is reached
is finished: it is passed on, and its payload is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.tensors.reduction_tree import Node, parent_and_sibling


@dataclass
class Arrival:
    """The changes that the arrival of one node's chunk makes.

    Attributes:
        duplicate: Everything it brings is covered already, so there is nothing to do.
        superseded: Stored nodes within the new one, whose payloads must be dropped.
        merges: Additions (left, right, parent) to make, in this order.
        done: The last merge, or the node itself, reached the root, and the gate does not hold it back.
    """

    duplicate: bool = False
    superseded: list[Node] = field(default_factory=list)
    merges: list[tuple[Node, Node, Node]] = field(default_factory=list)
    done: bool = False


class Coverage:
    """Coverage of one step: `chunks` chunks, each summed up the tree of `root`.

    Attributes:
        gated: Whether the last chunk is held back, so that the optimizer can't COMMIT yet.
    """

    def __init__(self, root: Node, chunks: int, *, gated: bool = False) -> None:
        self.root = root
        self.chunks = chunks
        self.gated = gated
        self._stored: dict[int, set[Node]] = {}
        self._done: set[int] = set()

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
        position = start
        while position < self.chunks and self.chunks - 1 - position in self._done:
            position += 1
        return position

    def add(self, node: Node, chunk: int) -> Arrival:
        """Count the arrival of `chunk` of `node`."""
        if self.covers(node, chunk):
            return Arrival(duplicate=True)
        stored = self._stored.setdefault(chunk, set())
        arrival = Arrival(superseded=sorted(other for other in stored if node.contains(other)))
        stored.difference_update(arrival.superseded)
        while node != self.root:
            parent, sibling = parent_and_sibling(self.root, node)
            if sibling not in stored:
                stored.add(node)
                return arrival
            stored.discard(sibling)
            arrival.merges.append((min(node, sibling), max(node, sibling), parent))
            node = parent
        if self.gated and len(self._done) == self.chunks - 1:
            stored.add(node)
            return arrival
        del self._stored[chunk]
        self._done.add(chunk)
        arrival.done = True
        return arrival

    def open_gate(self) -> int | None:
        """Open the gate and return the chunk it held back, which is finished now; None if it held back none."""
        self.gated = False
        for chunk, stored in self._stored.items():
            if self.root in stored:
                del self._stored[chunk]
                self._done.add(chunk)
                return chunk
        return None

    def covers(self, node: Node, chunk: int) -> bool:
        """Return whether nothing of `node` is missing for `chunk`."""
        return chunk in self._done or any(other.contains(node) for other in self._stored.get(chunk, ()))

    def missing(self, node: Node) -> list[int]:
        """Return the chunks for which something of `node` is missing."""
        return [chunk for chunk in range(self.chunks) if not self.covers(node, chunk)]

    def mark_done(self, chunk: int) -> list[Node]:
        """Count `chunk` as finished, since the optimizer has its sum; return the stored nodes to drop."""
        self._done.add(chunk)
        return sorted(self._stored.pop(chunk, set()))

    def reopen(self, chunk: int) -> bool:
        """Count `chunk` as missing, since the optimizer lost its sum; return whether it had been passed on."""
        if chunk not in self._done:
            return False
        self._done.discard(chunk)
        return True
