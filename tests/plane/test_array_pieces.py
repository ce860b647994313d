"""Pieces of arrays: a checkpoint survives its way to shards and back, and pieces that do not fit are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from numpy.typing import NDArray

from plane.array_pieces import DamagedPiece, write_piece
from plane.gathered_tensors import GatheredTensors, checkpoint_pieces
from plane.tensor_copies import TensorCopies
from protos import plane_pb2 as pb
from services.checkpoints.format import (
    Checkpoint,
)
from services.errors import Refused
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.tensors.stripes import Stripe

ELEMENTS = 3 * CHUNK_ELEMENTS + 5
LIMIT_SECONDS = 30
STATE_DTYPES = {"exp_avg": np.dtype(np.float32), "applied": np.dtype(np.int64)}


def checkpoint() -> Checkpoint:
    draw = np.random.default_rng(3)
    weights, moment = (draw.standard_normal(ELEMENTS, np.float32) for _ in range(2))
    return Checkpoint(
        path=Path("step-00000003"),
        job="j",
        generation=1,
        step=3,
        config_json="{}",
        layout=Layout.build([("w", (ELEMENTS,), True, "w", False)]),
        weights=weights,
        optimizer_state={"exp_avg": moment, "applied": np.array([3])},
        files={},
        model_sha256="",
    )


def empty_arrays(stripe: Stripe) -> dict[str, NDArray[Any]]:
    shard_elements = stripe.element_count(ELEMENTS)
    flat = {name: np.zeros(shard_elements, np.float32) for name in ("weights", "state/exp_avg")}
    return {**flat, "state/applied": np.zeros(1, np.int64)}


async def read_copy(arrays: dict[str, NDArray[Any]]) -> list[pb.ArrayPiece]:
    copies = TensorCopies()
    await asyncio.get_running_loop().run_in_executor(None, copies.make, 1, arrays)
    return [piece async for piece in copies.read(1)]


def with_checksum(piece: pb.ArrayPiece) -> pb.ArrayPiece:
    """Return the piece with the checksum that plane.proto asks for."""
    description = f"{piece.opening} {piece.array} {piece.dtype} {piece.elements} {piece.offset}"
    piece.crc32c = google_crc32c.value(description.encode() + piece.data)
    return piece


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, LIMIT_SECONDS))


@pytest.mark.parametrize("shards", [*(pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 6)), 3])
def test_a_checkpoint_survives_its_way_to_the_shards_and_back(shards: int) -> None:
    whole = checkpoint()
    gathered = GatheredTensors(ELEMENTS, STATE_DTYPES)
    for index in range(shards):
        stripe = Stripe(index, shards)
        arrays = empty_arrays(stripe)
        for piece in checkpoint_pieces(whole, stripe, opening=4):
            assert piece.opening == 4
            assert len(piece.SerializeToString()) < 4 << 20
            write_piece(piece, arrays)
        for piece in run(read_copy(arrays)):
            gathered.add(stripe, piece)
    gathered.check_complete()
    np.testing.assert_array_equal(gathered.weights, whole.weights)
    assert gathered.state.keys() == whole.optimizer_state.keys()
    for name, array in whole.optimizer_state.items():
        np.testing.assert_array_equal(gathered.state[name], array)
        assert gathered.state[name].dtype == array.dtype


def test_missing_chunks_are_refused() -> None:
    gathered = GatheredTensors(ELEMENTS, STATE_DTYPES)
    (first, *_) = checkpoint_pieces(checkpoint(), Stripe(), 1)
    gathered.add(Stripe(), first)
    with pytest.raises(Refused, match=r"array weights: .* 3 chunks .*chunk 1"):
        gathered.check_complete()


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"dtype": "float64"}, "'float64'"),
        ({"data": b"12345"}, "5 bytes, expected a multiple of 4"),
        ({"array": "state/velocity"}, "this job's optimizer has weights"),
        ({"elements": 7}, r"float32 \[7\]"),
        ({"offset": ELEMENTS}, f"offset {ELEMENTS}: {CHUNK_ELEMENTS} elements, .* {ELEMENTS}"),
    ],
)
def test_a_piece_that_does_not_fit_is_refused_and_changes_nothing(changed: dict[str, Any], line: str) -> None:
    arrays = empty_arrays(Stripe())
    (piece, *_) = checkpoint_pieces(checkpoint(), Stripe(), 1)
    for name, value in changed.items():
        setattr(piece, name, value)
    with pytest.raises(Refused, match=line):
        write_piece(with_checksum(piece), arrays)
    assert not any(array.any() for array in arrays.values())


def test_a_piece_beyond_the_array_is_refused() -> None:
    (piece, *_) = checkpoint_pieces(checkpoint(), Stripe(), 1)
    piece.offset = 100 * CHUNK_ELEMENTS
    with pytest.raises(Refused, match="expected the 0 of chunk 100"):
        GatheredTensors(ELEMENTS, STATE_DTYPES).add(Stripe(), with_checksum(piece))


@pytest.mark.parametrize("field", ["opening", "array", "dtype", "elements", "offset", "data"])
def test_a_damaged_piece_has_an_error_of_its_own(field: str) -> None:
    (piece, *_) = checkpoint_pieces(checkpoint(), Stripe(), 1)
    value = getattr(piece, field)
    damaged = {int: 1 - int(bool(value)), str: "weightt", bytes: piece.data[::-1]}[type(value)]
    setattr(piece, field, damaged)
    with pytest.raises(DamagedPiece, match=r"crc32c .* damaged"):
        write_piece(piece, empty_arrays(Stripe()))
    with pytest.raises(DamagedPiece, match="damaged"):
        GatheredTensors(ELEMENTS, STATE_DTYPES).add(Stripe(), piece)


def test_repeated_and_unknown_pieces_are_refused() -> None:
    pieces = list(checkpoint_pieces(checkpoint(), Stripe(), 1))
    gathered = GatheredTensors(ELEMENTS, STATE_DTYPES)
    for piece in pieces:
        gathered.add(Stripe(), piece)
    with pytest.raises(Refused, match=r"array 'weights', offset 0: .* before"):
        gathered.add(Stripe(), pieces[0])
    counter = pieces[-1]
    gathered.add(Stripe(), counter)  # every shard sends counters
    with pytest.raises(Refused, match=r"array 'state/applied', offset 0: 4 in .* 3 in another shard"):
        gathered.add(Stripe(), with_checksum(_with_data(counter, np.array([4]))))
    for number in range(100):
        piece = with_checksum(_renamed(pieces[0], f"state/{number}"))
        with pytest.raises(
            Refused, match=rf"array 'state/{number}'.* expected one of weights \(float32\), state/exp_avg"
        ):
            gathered.add(Stripe(), piece)
    assert gathered.state.keys() == STATE_DTYPES.keys()
    gathered.check_complete()


def _renamed(piece: pb.ArrayPiece, name: str) -> pb.ArrayPiece:
    renamed = pb.ArrayPiece()
    renamed.CopyFrom(piece)
    renamed.array = name
    return renamed


def _with_data(piece: pb.ArrayPiece, values: NDArray[Any]) -> pb.ArrayPiece:
    changed = _renamed(piece, piece.array)
    changed.data = values.tobytes()
    return changed
