"""Checkpoints of shards: arrays are taken apart and put together without a loss; what does not fit is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from numpy.typing import NDArray

from aggregator.shards.array_pieces import DamagedPiece, GatheredTensors, TensorCopies, put, scattered
from protos import shards_pb2 as pb
from services.checkpoints import Checkpoint
from services.errors import Refused
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.tensors.stripes import Stripe

ELEMENTS = 3 * CHUNK_ELEMENTS + 5
LIMIT_SECONDS = 30
KINDS = {"exp_avg": np.dtype(np.float32), "applied": np.dtype(np.int64)}


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


def empty_part(stripe: Stripe) -> dict[str, NDArray[Any]]:
    own = stripe.element_count(ELEMENTS)
    flat = {name: np.zeros(own, np.float32) for name in ("weights", "state/exp_avg")}
    return {**flat, "state/applied": np.zeros(1, np.int64)}


async def copied(arrays: dict[str, NDArray[Any]]) -> list[pb.ArrayPiece]:
    copies = TensorCopies()
    await asyncio.get_running_loop().run_in_executor(None, copies.make, 1, arrays)
    return [piece async for piece in copies.read(1)]


def sealed(piece: pb.ArrayPiece) -> pb.ArrayPiece:
    """The piece, with the checksum that shards.proto asks for."""
    what = f"{piece.opening} {piece.array} {piece.dtype} {piece.elements} {piece.offset}"
    piece.crc32c = google_crc32c.value(what.encode() + piece.data)
    return piece


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, LIMIT_SECONDS))


@pytest.mark.parametrize("shards", [1, 2, 3, 6])
def test_what_shards_are_given_is_what_they_give_back(shards: int) -> None:
    whole = checkpoint()
    gathered = GatheredTensors(ELEMENTS, KINDS)
    for index in range(shards):
        stripe = Stripe(index, shards)
        part = empty_part(stripe)
        for piece in scattered(whole, stripe, opening=4):
            assert piece.opening == 4
            assert len(piece.SerializeToString()) < 4 << 20
            put(piece, part)
        for piece in run(copied(part)):
            gathered.take(stripe, piece)
    gathered.check()
    np.testing.assert_array_equal(gathered.weights, whole.weights)
    assert gathered.state.keys() == whole.optimizer_state.keys()
    for name, array in whole.optimizer_state.items():
        np.testing.assert_array_equal(gathered.state[name], array)
        assert gathered.state[name].dtype == array.dtype


def test_a_shard_that_gives_too_little_is_found_out() -> None:
    gathered = GatheredTensors(ELEMENTS, KINDS)
    (first, *_) = scattered(checkpoint(), Stripe(), 1)
    gathered.take(Stripe(), first)
    with pytest.raises(
        Refused, match="array weights: the shards did not give 3 of its pieces, chunk 1 first"
    ):
        gathered.check()


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"dtype": "float64"}, "'float64'"),
        ({"data": b"12345"}, "5 bytes, no whole number of float32"),
        ({"array": "state/velocity"}, "this job's optimizer has weights"),
        ({"elements": 7}, r"float32 \[7\]"),
        ({"offset": ELEMENTS}, f"offset {ELEMENTS}: {CHUNK_ELEMENTS} elements, it has {ELEMENTS}"),
    ],
)
def test_a_piece_that_does_not_fit_is_refused_and_changes_nothing(changed: dict[str, Any], line: str) -> None:
    part = empty_part(Stripe())
    (piece, *_) = scattered(checkpoint(), Stripe(), 1)
    for name, value in changed.items():
        setattr(piece, name, value)
    with pytest.raises(Refused, match=line):
        put(sealed(piece), part)
    assert not any(array.any() for array in part.values())


def test_a_piece_of_no_chunk_is_refused() -> None:
    (piece, *_) = scattered(checkpoint(), Stripe(), 1)
    piece.offset = 100 * CHUNK_ELEMENTS
    with pytest.raises(Refused, match="expected 0, of a chunk"):
        GatheredTensors(ELEMENTS, KINDS).take(Stripe(), sealed(piece))


@pytest.mark.parametrize("field", ["opening", "array", "dtype", "elements", "offset", "data"])
def test_a_piece_that_was_damaged_is_told_from_one_that_does_not_fit(field: str) -> None:
    (piece, *_) = scattered(checkpoint(), Stripe(), 1)
    value = getattr(piece, field)
    damaged = {int: 1 - int(bool(value)), str: "weightt", bytes: piece.data[::-1]}[type(value)]
    setattr(piece, field, damaged)
    with pytest.raises(DamagedPiece, match="another crc32c than theirs: it was damaged"):
        put(piece, empty_part(Stripe()))
    with pytest.raises(DamagedPiece, match="it was damaged"):
        GatheredTensors(ELEMENTS, KINDS).take(Stripe(), piece)


def test_what_came_before_and_what_nobody_asked_for_is_refused() -> None:
    pieces = list(scattered(checkpoint(), Stripe(), 1))
    gathered = GatheredTensors(ELEMENTS, KINDS)
    for piece in pieces:
        gathered.take(Stripe(), piece)
    with pytest.raises(Refused, match="array 'weights', offset 0: has come before"):
        gathered.take(Stripe(), pieces[0])
    counter = pieces[-1]
    gathered.take(Stripe(), counter)  # each shard has it
    with pytest.raises(Refused, match=r"array 'state/applied', offset 0: 4 in .*, 3 in another shard"):
        gathered.take(Stripe(), sealed(_with_data(counter, np.array([4]))))
    for number in range(100):
        piece = sealed(_renamed(pieces[0], f"state/{number}"))
        with pytest.raises(
            Refused, match=rf"array 'state/{number}'.* expected one of weights \(float32\), state/exp_avg"
        ):
            gathered.take(Stripe(), piece)
    assert gathered.state.keys() == KINDS.keys()
    gathered.check()


def _renamed(piece: pb.ArrayPiece, name: str) -> pb.ArrayPiece:
    renamed = pb.ArrayPiece()
    renamed.CopyFrom(piece)
    renamed.array = name
    return renamed


def _with_data(piece: pb.ArrayPiece, values: NDArray[Any]) -> pb.ArrayPiece:
    changed = _renamed(piece, piece.array)
    changed.data = values.tobytes()
    return changed


def test_a_copy_that_nobody_reads_holds_up_nothing() -> None:
    async def scenario() -> None:
        copies = TensorCopies()
        loop = asyncio.get_running_loop()
        array = np.zeros(2, np.float32)
        await loop.run_in_executor(None, copies.make, 1, {"weights": array})
        array[:] = 1.0
        await loop.run_in_executor(None, copies.make, 2, {"weights": array})
        array[:] = 2.0
        (later,) = [piece async for piece in copies.read(2)]
        assert np.frombuffer(later.data, np.float32).tolist() == [1.0, 1.0], "as it was when asked for"
        assert not copies._made, "the first is held no longer"

    run(scenario())


def test_a_copy_that_there_is_no_memory_for_is_told_to_its_reader() -> None:
    class Large:
        def copy(self) -> Any:
            raise MemoryError("no room")

    async def scenario() -> None:
        copies = TensorCopies()
        arrays: Any = {"weights": Large()}
        await asyncio.get_running_loop().run_in_executor(None, copies.make, 1, arrays)
        with pytest.raises(MemoryError, match="no room"):
            [piece async for piece in copies.read(1)]

    run(scenario())


def test_a_reader_that_waits_is_let_go_when_the_link_ends() -> None:
    async def scenario() -> None:
        copies = TensorCopies()
        reader = asyncio.ensure_future(anext(copies.read(1)))
        await asyncio.sleep(0)
        copies.close()
        with pytest.raises(asyncio.CancelledError):
            await reader

    run(scenario())
