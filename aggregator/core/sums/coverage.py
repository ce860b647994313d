"""Which parts of a step's sum are here: per chunk, the nodes of the reduction tree that have arrived.

Held nodes of a chunk never overlap. Two siblings merge into their parent at once; a chunk whose root is reached is
done, is passed on, and is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.tensors.reduction_tree import Node, parent_and_sibling


@dataclass
class Arrival:
    """What a node's chunk does to the sum.

    Attributes:
        duplicate: everything it brings is covered already; nothing is to be done.
        superseded: held nodes within the new one; their payloads are to be dropped.
        merges: (left, right, parent) additions to make, in this order.
        done: the last merge, or the node itself, reached the root, which is not held back.
    """

    duplicate: bool = False
    superseded: list[Node] = field(default_factory=list)
    merges: list[tuple[Node, Node, Node]] = field(default_factory=list)
    done: bool = False


class Coverage:
    """Coverage of one step: `chunks` chunks, each to be summed up the tree of `root`.

    Attributes:
        gated: whether the chunk that would complete the sum is held back, so that there is no COMMIT yet.
    """

    def __init__(self, root: Node, chunks: int, *, gated: bool = False) -> None:
        self.root = root
        self.chunks = chunks
        self.gated = gated
        self._held: dict[int, set[Node]] = {}
        self._done: set[int] = set()

    @property
    def complete(self) -> bool:
        """Whether every chunk has reached the root."""
        return len(self._done) == self.chunks

    def done_in_order(self, start: int) -> int:
        """Length of the done run from position `start` of the agreed order (last chunk of the layout first)."""
        position = start
        while position < self.chunks and self.chunks - 1 - position in self._done:
            position += 1
        return position

    def add(self, node: Node, chunk: int) -> Arrival:
        """Count the arrival of `chunk` of `node`."""
        if self.covers(node, chunk):
            return Arrival(duplicate=True)
        held = self._held.setdefault(chunk, set())
        arrival = Arrival(superseded=sorted(other for other in held if node.contains(other)))
        held.difference_update(arrival.superseded)
        while node != self.root:
            parent, sibling = parent_and_sibling(self.root, node)
            if sibling not in held:
                held.add(node)
                return arrival
            held.discard(sibling)
            arrival.merges.append((min(node, sibling), max(node, sibling), parent))
            node = parent
        if self.gated and len(self._done) == self.chunks - 1:
            held.add(node)
            return arrival
        del self._held[chunk]
        self._done.add(chunk)
        arrival.done = True
        return arrival

    def open_gate(self) -> int | None:
        """Hold nothing back any more; the chunk that was held back, now done, if one was."""
        self.gated = False
        for chunk, held in self._held.items():
            if self.root in held:
                del self._held[chunk]
                self._done.add(chunk)
                return chunk
        return None

    def covers(self, node: Node, chunk: int) -> bool:
        """Whether nothing of `node` is missing for `chunk`."""
        return chunk in self._done or any(held.contains(node) for held in self._held.get(chunk, ()))

    def missing(self, node: Node) -> list[int]:
        """The chunks for which something of `node` is missing."""
        return [chunk for chunk in range(self.chunks) if not self.covers(node, chunk)]

    def mark_done(self, chunk: int) -> list[Node]:
        """The next tier has the sum of `chunk` already; the nodes held for it are to be dropped."""
        self._done.add(chunk)
        return sorted(self._held.pop(chunk, set()))

    def reopen(self, chunk: int) -> bool:
        """The next tier lost the sum of `chunk`; whether it had been passed on (and so must be summed again)."""
        if chunk not in self._done:
            return False
        self._done.discard(chunk)
        return True
