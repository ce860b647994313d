"""Orders to planes, from what the core has decided."""

from __future__ import annotations

from protos import plane_pb2 as plane
from protos.cluster_pb2 import LayoutPart
from protos.tensors_pb2 import ChunkHeader
from services.protocol.versions import Version
from services.tensors.layout_parts import LayoutParts
from services.tensors.reduction_tree import Node


def discard_piece(header: ChunkHeader, arrival: int) -> plane.DiscardPiece:
    """Return the order to discard an arrived piece."""
    return plane.DiscardPiece(job=header.job, chunk=header.index, arrival=arrival)


def keep_sum(header: ChunkHeader, node: Node | None) -> plane.KeepSum:
    """Return the order to keep the chunk that a lease's pieces make up as the sum of a node; to discard it for None."""
    summed = None if node is None else _to_message(node)
    return plane.KeepSum(job=header.job, chunk=header.index, lease=header.lease, node=summed)


def drop_sum(job: str, chunk: int, node: Node) -> plane.DropSum:
    """Return the order to free the sum of a node."""
    return plane.DropSum(job=job, chunk=chunk, node=_to_message(node))


def merge_sums(job: str, chunk: int, left: Node, right: Node, parent: Node) -> plane.MergeSums:
    """Return the order to add the sums of two siblings."""
    return plane.MergeSums(
        job=job, chunk=chunk, left=_to_message(left), right=_to_message(right), parent=_to_message(parent)
    )


def finish_sum(header: ChunkHeader, root: Node) -> plane.FinishSum:
    """Return the order to give the sum of a root to the tensors under a header."""
    return plane.FinishSum(job=header.job, chunk=header.index, node=_to_message(root), header=header)


def send_version(job: str, session: int, version: Version, parts: LayoutParts | None) -> plane.SendVersion:
    """Return the order to send a worker the weights of a version: all of them, or those in parts of the layout."""
    runs = () if parts is None else parts.runs
    return plane.SendVersion(
        job=job,
        session=session,
        generation=version.generation,
        step=version.step,
        parts=[LayoutPart(offset=start, elements=stop - start) for start, stop in runs],
    )


def _to_message(node: Node) -> plane.SumNode:
    return plane.SumNode(first=node.first, count=node.count)
