"""Memory through which arrays get to a neighbour on this host.

Each kind of array has a place for each credit. The array with number n is in place n mod credits: it is free again when
the neighbour has taken the array that was there, because then the sender gets the credit back.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from plane.streams.shared_memory_link import TensorLink
from protos.pipeline_pb2 import ArrayKind
from protos.tensors_pb2 import SharedPlaces
from services.tensors.shared_memory import SharedArray
from worker.core.lanes import Piece
from worker.pipeline.array_plan import ArrayPlan
from worker.pipeline.messages import PIECE_BYTES, ArrayPiece, PassRefused, PieceReference, describe_array

log = logging.getLogger("tiermesh.worker")

MOST_BYTES = 256 << 20
"""Largest memory for a kind of arrays. It is allocated at once, so larger ones, as of tied parts, go over the wire."""


class MemoryUnreadable(PassRefused):
    """Memory of a neighbour on this host that can't be read."""


class SharedArrays:
    """Places of the arrays that are sent on one link, made when the first array of a kind is sent.

    Args:
        plan: arrays of the job.
        workers: number of workers in the row.
    """

    def __init__(self, plan: ArrayPlan, workers: int) -> None:
        self._plan = plan
        self._workers = workers
        self._arrays: dict[ArrayKind, SharedArray | None] = {}

    def put(self, kind: ArrayKind, piece: Piece[Any], content: memoryview) -> SharedPlaces | None:
        """Write a piece into its array's place, and return where that is; None if there is no such memory.

        Args:
            kind: kind of the array.
            piece: the piece.
            content: its bytes.
        """
        credits = self._plan.choose_credits(kind, self._workers)
        if kind not in self._arrays:
            self._arrays[kind] = _make(credits, self._plan.limit_bytes(kind))
        array = self._arrays[kind]
        if array is None:
            return None
        index = piece.number % credits
        array.place(index)[piece.start : piece.stop] = np.frombuffer(content, np.uint8)
        return SharedPlaces(identity=array.identity, descriptor=array.descriptor, indices=[index])


def _make(places: int, place_bytes: int) -> SharedArray | None:
    if places * place_bytes > MOST_BYTES:
        return None
    try:
        return SharedArray(places * place_bytes, place_bytes)
    except OSError as error:
        log.warning("arrays go over gRPC: shared memory can't be created (%s)", error)
        return None


def find_payload(reference: PieceReference, tensor_link: TensorLink) -> ArrayPiece:
    """Return the piece that a neighbour refers to.

    Raises:
        Refused: the ends have not agreed on shared memory.
        MemoryUnreadable: they have, but it can't be mapped.
    """
    header, places = reference.header, reference.places
    what = describe_array(header)
    if len(places.indices) != 1:
        raise PassRefused(f"{what}: shared memory: {len(places.indices)} places, expected 1")
    array = tensor_link.find_array(places, what)
    if array is None:
        raise MemoryUnreadable(f"{what}: shared memory: can't be read; send the payload")
    place = array.place(places.indices[0])
    start = header.offset_bytes
    return ArrayPiece(header, place[start : start + PIECE_BYTES].data, is_shared=True)
