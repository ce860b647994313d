"""Parts of checkpoints as files: a checkpoint survives its way to shards and back, and files of others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load

from plane.checkpoint_files import GatheredTensors, TensorFile, checkpoint_file
from protos.files_pb2 import FileRef
from services.checkpoints.format import Checkpoint
from services.errors import Refused
from services.files.memory import FilesInMemory
from services.files.memory_file import MemoryFile
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.tensors.stripes import Stripe

ELEMENTS = 3 * CHUNK_ELEMENTS + 5
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


def shard_arrays(stripe: Stripe) -> dict[str, NDArray[Any]]:
    """Return arrays of a shard, all zero."""
    elements = stripe.element_count(ELEMENTS)
    flat = {name: np.zeros(elements, np.float32) for name in ("weights", "state/exp_avg")}
    return {**flat, "state/applied": np.zeros(1, np.int64)}


def file_of(arrays: dict[str, NDArray[Any]], job: str = "j") -> TensorFile:
    return TensorFile(job, {name: [array] for name, array in arrays.items()})


def send(file: MemoryFile, into: TensorFile) -> None:
    """Have a file arrive as another one's bytes."""
    files, ref = FilesInMemory(), file.make_ref()
    into.expect_in(files, ref)
    arriving = files.begin(ref, 0)
    assert arriving is not None
    with arriving:
        arriving.write(file.read(0, file.size))
        arriving.finish()


@pytest.mark.parametrize("shards", [1, 2, 3, 6])
def test_a_checkpoint_survives_its_way_to_the_shards_and_back(shards: int) -> None:
    whole = checkpoint()
    gathered = GatheredTensors(ELEMENTS, STATE_DTYPES)
    for index in range(shards):
        stripe = Stripe(index, shards)
        arrays = shard_arrays(stripe)
        send(checkpoint_file("j", whole, stripe), file_of(arrays))
        np.testing.assert_array_equal(arrays["weights"][:5], whole.weights[index * CHUNK_ELEMENTS :][:5])
        send(file_of(arrays), gathered.file_of("j", stripe))
    gathered.finish()
    np.testing.assert_array_equal(gathered.weights, whole.weights)
    assert gathered.state.keys() == whole.optimizer_state.keys()
    for name, array in whole.optimizer_state.items():
        np.testing.assert_array_equal(gathered.state[name], array)
        assert gathered.state[name].dtype == array.dtype


def test_a_part_is_a_safetensors_file() -> None:
    arrays = shard_arrays(Stripe(1, 2))
    arrays["weights"][:] = 7
    file = file_of(arrays)
    found = load(file.read(0, file.size))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_shards_that_differ_in_a_counter_are_refused() -> None:
    gathered = GatheredTensors(ELEMENTS, STATE_DTYPES)
    for index in (0, 1):
        arrays = shard_arrays(Stripe(index, 2))
        arrays["state/applied"][0] = 3 + index
        send(file_of(arrays), gathered.file_of("j", Stripe(index, 2)))
    with pytest.raises(Refused, match=r"array state/applied: 4 in shard 1 of 2, but 3 in shard 0"):
        gathered.finish()


def test_a_part_of_another_size_is_refused_before_it_arrives() -> None:
    file = file_of(shard_arrays(Stripe(0, 2)))
    with pytest.raises(Refused, match=f"{file.size - 1} bytes, expected {file.size}"):
        file.expect_in(FilesInMemory(), FileRef(sha256="0" * 64, size=file.size - 1))


def test_a_part_of_other_arrays_is_refused() -> None:
    arrays = shard_arrays(Stripe(0, 2))
    others = {name.replace("exp_avg", "max_avg"): array for name, array in arrays.items()}
    with pytest.raises(Refused, match=r"header is not that of job j: weights, state/exp_avg, state/applied"):
        send(file_of(others), file_of(arrays))


def test_parts_of_two_jobs_with_the_same_values_are_two_files() -> None:
    arrays, others = shard_arrays(Stripe(0, 2)), shard_arrays(Stripe(0, 2))
    first, second = file_of(arrays), file_of(others, job="k")
    assert first.make_ref().sha256 != second.make_ref().sha256
    with pytest.raises(Refused, match="header is not that of job k"):
        send(first, file_of(others, job="k"))
