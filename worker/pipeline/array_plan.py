"""What the arrays of a job are on the way between workers: their types, their largest sizes, and how many are kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mesh.exact_transfer import ExactArray
from protos.pipeline_pb2 import ACTIVATION, ACTIVATION_GRADIENT, TIED_PART, ArrayKind
from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, DType
from services.config.job import JobConfig
from services.pipeline.credits import Credits
from services.pipeline.schedule import ScheduleKind
from services.pipeline.split import Split
from services.tensors.kernels.arithmetic import Float32Array, from_wire, to_wire
from services.tensors.kernels.wire_types import STORED, WireDType
from training.pipeline.exchange import ArraySizes
from training.pipeline.stages import PipelineStages

KINDS = (ACTIVATION_GRADIENT, ACTIVATION, TIED_PART)
"""Kinds of arrays, the one first that is sent first: a tied part is large and needed last."""

_DTYPES: dict[str, DType] = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}
_KERNEL_NAMES: dict[DType, WireDType] = {FLOAT32: "fp32", BFLOAT16: "bf16", FLOAT16: "fp16"}
_OWN_DTYPES = {np.dtype(np.float32): FLOAT32, np.dtype(np.uint16): BFLOAT16}


@dataclass(frozen=True)
class ArrayPlan:
    """The arrays that the ranges of a job exchange; the same for all workers of a row.

    Attributes:
        split: the ranges.
        schedule: order of a stage's passes.
        sizes: dtype and largest sizes of the arrays.
        wire: type in which they travel.
    """

    split: Split
    schedule: ScheduleKind
    sizes: ArraySizes
    wire: DType

    @classmethod
    def of(cls, config: JobConfig, stages: PipelineStages) -> ArrayPlan:
        """Return the plan of a job with a pipeline, of which some stages are built."""
        pipeline, wire = config.pipeline, config.wire_dtype.activations
        assert pipeline is not None
        sizes = stages.array_sizes
        return cls(
            pipeline.split,
            pipeline.schedule,
            sizes,
            _OWN_DTYPES[sizes.dtype] if wire is None else _DTYPES[wire],
        )

    @property
    def element_bytes(self) -> int:
        """Size of an element on the wire."""
        return STORED[_KERNEL_NAMES[self.wire]].itemsize

    def limit_bytes(self, kind: ArrayKind) -> int:
        """Return the size of the largest array of a kind on the wire."""
        elements = self.sizes.tied_elements if kind == TIED_PART else self.sizes.activation_elements
        return elements * self.element_bytes

    def choose_credits(self, kind: ArrayKind, workers: int) -> int:
        """Return how many arrays of a kind may be under way in one direction of a link.

        Args:
            kind: the kind.
            workers: number of workers that have all stages.
        """
        credits = Credits.choose(self.schedule, self.split.stages, shares_workers=workers < self.split.stages)
        return {
            ACTIVATION: credits.activations,
            ACTIVATION_GRADIENT: credits.gradients,
            TIED_PART: credits.tied,
        }[kind]

    def pack(self, array: ExactArray) -> memoryview:
        """Return an array's bytes on the wire; a view of the array if its dtype is that of the wire."""
        if _OWN_DTYPES[array.dtype] == self.wire:
            packed = np.ascontiguousarray(array)
        else:
            packed = to_wire(_widen(array).reshape(-1), _KERNEL_NAMES[self.wire])
        return packed.reshape(-1).view(np.uint8).data

    def unpack(self, content: NDArray[np.uint8], shape: tuple[int, ...]) -> ExactArray:
        """Return the array of a shape whose bytes have arrived, in the dtype of the mesh."""
        own = _OWN_DTYPES[self.sizes.dtype]
        if own == self.wire:
            return content.view(self.sizes.dtype).reshape(shape)
        values = from_wire(content, _KERNEL_NAMES[self.wire])
        if own == FLOAT32:
            return values.reshape(shape)
        if self.wire == FLOAT32:  # nothing to round: NaNs keep their bits, too
            return (values.view(np.uint32) >> 16).astype(np.uint16).reshape(shape)
        return to_wire(values, _KERNEL_NAMES[own]).reshape(shape)


def _widen(array: ExactArray) -> Float32Array:
    """Return an array in float32, without rounding."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return from_wire(flat.view(np.uint8).data, _KERNEL_NAMES[_OWN_DTYPES[array.dtype]])
