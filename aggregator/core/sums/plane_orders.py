"""Orders to planes, from what the core has decided."""

from __future__ import annotations

from collections.abc import Iterable

from protos import plane_pb2 as plane
from protos.cluster_pb2 import LayoutPart
from protos.tensors_pb2 import ChunkHeader
from services.protocol.versions import Version
from services.tensors.layout_parts import LayoutParts
from services.tensors.reduction_tree import Node


def keep_pieces(header: ChunkHeader, arrivals: Iterable[int]) -> plane.KeepPieces:
    """Return the order to keep pieces that have arrived; the header is that of one of their plane."""
    return plane.KeepPieces(job=header.job, chunk=header.index, arrivals=arrivals)


def discard_pieces(header: ChunkHeader, arrivals: Iterable[int]) -> plane.DiscardPieces:
    """Return the order to discard pieces that have arrived; the header is that of one of their plane."""
    return plane.DiscardPieces(job=header.job, chunk=header.index, arrivals=arrivals)


def keep_sum(job: str, lease: int, chunks: Iterable[int], node: Node | None) -> plane.KeepSum:
    """Return the order to keep chunks that a lease's pieces make up as sums of a node; to discard them for None."""
    summed = None if node is None else _to_message(node)
    return plane.KeepSum(job=job, chunks=chunks, lease=lease, node=summed)


def drop_sum(job: str, chunks: Iterable[int], node: Node) -> plane.DropSum:
    """Return the order to free sums of a node."""
    return plane.DropSum(job=job, chunks=chunks, node=_to_message(node))


def merge_sums(job: str, chunks: Iterable[int], left: Node, right: Node, parent: Node) -> plane.MergeSums:
    """Return the order to add the sums of two siblings."""
    nodes = {"left": _to_message(left), "right": _to_message(right), "parent": _to_message(parent)}
    return plane.MergeSums(job=job, chunks=chunks, **nodes)


def finish_sum(header: ChunkHeader, chunks: Iterable[int], root: Node) -> plane.FinishSum:
    """Return the order to give sums of a root to the tensors, the first of them under this header."""
    return plane.FinishSum(job=header.job, chunks=chunks, node=_to_message(root), header=header)


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
