"""A checkpoint's arrays and the pieces of them that each shard holds."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plane.array_pieces import STATE_PREFIX, WEIGHTS, describe_place, make_piece, read_piece
from protos import plane_pb2 as pb
from services.checkpoints.format import (
    Checkpoint,
)
from services.errors import Refused
from services.printable import counted
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS, chunk_count
from services.tensors.stripes import Stripe


class GatheredTensors:
    """Whole arrays, put together from the pieces of all shards; methods may be called on any thread.

    Args:
        elements: number of elements of the layout.
        state_dtypes: dtypes of the update rule's arrays by name: float32 for [elements], int64 for a [1] counter.

    Attributes:
        weights: master weights, [elements] float32.
        state: arrays of the update rule by name.
    """

    def __init__(self, elements: int, state_dtypes: Mapping[str, np.dtype[Any]]) -> None:
        self.weights: Float32Array = np.empty(elements, np.float32)
        self.state: dict[str, NDArray[Any]] = {
            name: np.empty(elements if dtype == np.float32 else 1, dtype)
            for name, dtype in state_dtypes.items()
        }
        state = {STATE_PREFIX + name: array for name, array in self.state.items()}
        self._arrays = {WEIGHTS: self.weights, **state}
        self._missing = {name: set(range(chunk_count(array.size))) for name, array in self._arrays.items()}
        self._lock = threading.Lock()

    def add(self, stripe: Stripe, piece: pb.ArrayPiece) -> None:
        """Copy a shard's piece to its place in the whole array.

        Raises:
            Refused: the piece is damaged, does not fit, or came before, or two shards differ in a counter.
        """
        values = read_piece(piece)
        with self._lock:
            self._add(stripe, piece, values)

    def _add(self, stripe: Stripe, piece: pb.ArrayPiece, values: NDArray[Any]) -> None:
        place = describe_place(piece)
        array, missing = self._arrays.get(piece.array), self._missing.get(piece.array)
        if array is None or missing is None or array.dtype != values.dtype:
            known = ", ".join(f"{name} ({each.dtype})" for name, each in self._arrays.items())
            raise Refused(f"{place}: dtype {values.dtype}, expected one of {known}")
        is_counter = values.dtype != np.float32  # every shard sends it
        chunk = 0 if is_counter else stripe.to_global(piece.offset // CHUNK_ELEMENTS)
        start = chunk * CHUNK_ELEMENTS
        expected = max(0, min(CHUNK_ELEMENTS, array.size - start))
        if piece.offset % CHUNK_ELEMENTS or values.size != expected:
            raise Refused(f"{place}: {values.size} elements, expected the {expected} of chunk {chunk}")
        if chunk in missing:
            missing.remove(chunk)
            array[start : start + expected] = values
        elif not is_counter:
            raise Refused(f"{place}: chunk {chunk} came before, expected each chunk once")
        elif values != array:
            shard = f"shard {stripe.index} of {stripe.count}"
            raise Refused(
                f"{place}: {values[0]} in {shard}, but {array[0]} in another shard; expected the same"
            )

    def adopt(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take whole arrays as they are, from the only plane.

        Args:
            arrays: arrays by their names in `ArrayPiece`.
        """
        self.weights = arrays[WEIGHTS]
        self.state = {name: arrays[STATE_PREFIX + name] for name in self.state}
        self._arrays.clear()  # memory that was never touched
        self._missing.clear()

    def check_complete(self) -> None:
        """Check that every chunk of every array has come.

        Raises:
            Refused: a chunk is missing.
        """
        for name, missing in self._missing.items():
            if missing:
                raise Refused(
                    f"array {name}: the shards' answers lack {counted(len(missing), 'chunk')} of it; the first is "
                    f"chunk {min(missing)}"
                )


def checkpoint_pieces(checkpoint: Checkpoint, stripe: Stripe, opening: int) -> Iterator[pb.ArrayPiece]:
    """Yield the pieces of a checkpoint's arrays that belong to a shard, for its OpenPart of this number."""
    state = {f"{STATE_PREFIX}{name}": array for name, array in checkpoint.optimizer_state.items()}
    shard_elements = stripe.element_count(checkpoint.layout.elements)
    for name, array in {WEIGHTS: checkpoint.weights, **state}.items():
        if array.dtype != np.float32:
            yield make_piece(name, array, 0, offset=0, elements=array.size, opening=opening)
            continue
        for whole, local in stripe.ranges(checkpoint.layout.elements):
            yield make_piece(
                name, array, whole.start, offset=local.start, elements=shard_elements, opening=opening
            )
