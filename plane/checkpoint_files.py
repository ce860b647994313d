"""A plane's part of a checkpoint as a file: in safetensors' format, over arrays that stay where they are in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protos.files_pb2 import FileRef
from services.checkpoints.format import Checkpoint
from services.checkpoints.safetensors_file import make_header
from services.errors import Refused
from services.files.memory import FilesInMemory
from services.files.memory_file import MemoryFile
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.stripes import Stripe

WEIGHTS = "weights"
"""Name of the array of master weights."""
STATE_PREFIX = "state/"
"""Prefix of the names of the update rule's arrays."""


class TensorFile(MemoryFile):
    """A file of a job's flat arrays. Who writes it writes the arrays.

    Files are named by their SHA-256. Its header names the job, so two jobs with the same values have two files.

    Args:
        job: id of the job.
        arrays: arrays by name, float32 and int64, each as the parts that follow one another in the file.
    """

    def __init__(self, job: str, arrays: Mapping[str, Sequence[NDArray[Any]]]) -> None:
        ordered = sorted(arrays.items(), key=lambda item: (-item[1][0].dtype.itemsize, item[0]))
        shapes = ((name, parts[0].dtype.name, (sum(map(len, parts)),)) for name, parts in ordered)
        self._names = f"job {job}: {', '.join(arrays)}"
        self._expected = make_header(shapes, {"job": job})
        self._header = bytearray(self._expected)
        views = [part.view(np.uint8).data for _, parts in ordered for part in parts]
        super().__init__([memoryview(self._header), *views])

    def expect_in(self, files: FilesInMemory, ref: FileRef) -> None:
        """Have a file written into these arrays as it arrives (Refused, if it can't be one of them)."""
        if ref.size != self.size:
            raise Refused(
                f"part of a checkpoint: {ref.size} bytes, expected {self.size}; give all processes the same version"
            )
        files.expect(ref, self, self._check_header)

    def _check_header(self) -> None:
        if self._header != self._expected:
            raise Refused(
                f"part of a checkpoint: its header is not that of {self._names}; give all processes the same version"
            )


def name_arrays(weights: Float32Array, state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return master weights and the update rule's arrays by their names in a `TensorFile`."""
    return {WEIGHTS: weights, **{f"{STATE_PREFIX}{name}": array for name, array in state.items()}}


def checkpoint_file(job: str, checkpoint: Checkpoint, stripe: Stripe) -> TensorFile:
    """Return the file of a stripe of the arrays of a checkpoint, which a job begins with."""
    arrays = name_arrays(checkpoint.weights, checkpoint.optimizer_state)
    return TensorFile(job, {name: _parts_of(array, stripe) for name, array in arrays.items()})


def _parts_of(array: NDArray[Any], stripe: Stripe) -> list[NDArray[Any]]:
    """Return views of a stripe's chunks of an array; a counter is in every stripe."""
    if array.dtype != np.float32:
        return [array]
    return [array[whole] for whole, _ in stripe.ranges(array.size)] or [array[:0]]


class GatheredTensors:
    """Whole arrays, put together from the files of all planes.

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
        self._counters: dict[Stripe, dict[str, NDArray[Any]]] = {}

    def file_of(self, job: str, stripe: Stripe) -> TensorFile:
        """Return the file of a stripe of a job's arrays, which is to be written."""
        arrays = name_arrays(self.weights, self.state)
        counters = {name: np.empty_like(each) for name, each in arrays.items() if each.dtype != np.float32}
        self._counters[stripe] = counters
        return TensorFile(job, {name: _parts_of(each, stripe) for name, each in (arrays | counters).items()})

    def adopt(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take whole arrays as they are, from the only plane.

        Args:
            arrays: arrays by their names in a `TensorFile`.
        """
        self.weights = arrays[WEIGHTS]
        self.state = {name: arrays[STATE_PREFIX + name] for name in self.state}

    def finish(self) -> None:
        """Take the counters, which every file has, once all files are written.

        Raises:
            Refused: two planes differ in one.
        """
        first: Stripe | None = None
        for stripe, counters in self._counters.items():
            first = first or stripe
            for name, counter in counters.items():
                expected = self._counters[first][name]
                if counter != expected:
                    raise Refused(
                        f"array {name}: {counter[0]} in shard {stripe.index} of {stripe.count}, but {expected[0]} in "
                        f"shard {first.index}; expected the same"
                    )
                self.state[name.removeprefix(STATE_PREFIX)] = counter
