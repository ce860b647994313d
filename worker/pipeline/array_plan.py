"""What the arrays of a job are on the way between workers: their types, their largest sizes, and how many are kept."""

from __future__ import annotations

from dataclasses import dataclass

from protos.pipeline_pb2 import ACTIVATION, ACTIVATION_GRADIENT, TIED_PART, ArrayKind
from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, DType
from services.config.job import JobConfig
from services.pipeline.credits import Credits
from services.pipeline.exchange import ArraySizes
from services.pipeline.schedule import ScheduleKind
from services.pipeline.split import Split
from services.tensors.wire_arrays import WireArrays, wire_type_of

KINDS = (ACTIVATION_GRADIENT, ACTIVATION, TIED_PART)
"""Kinds of arrays, the one first that is sent first: a tied part is large and needed last."""

_DTYPES: dict[str, DType] = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}


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
    def of(cls, config: JobConfig, sizes: ArraySizes) -> ArrayPlan:
        """Return the plan of a job with a pipeline, given the sizes of arrays."""
        pipeline, wire = config.pipeline, config.wire_dtype.activations
        assert pipeline is not None
        return cls(
            pipeline.split,
            pipeline.schedule,
            sizes,
            wire_type_of(sizes.dtype) if wire is None else _DTYPES[wire],
        )

    @property
    def arrays(self) -> WireArrays:
        """How the arrays travel."""
        return WireArrays(self.sizes.dtype, self.wire)

    def limit_bytes(self, kind: ArrayKind) -> int:
        """Return the size of the largest array of a kind on the wire."""
        elements = self.sizes.tied_elements if kind == TIED_PART else self.sizes.activation_elements
        return elements * self.arrays.element_bytes

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
