"""A worker with a fault: `tiermesh worker` as it is, but that one gradient has a NaN when it comes off the mesh."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from cli.main import main
from mesh.device import Mesh
from services.runtime import process

Float32Array = npt.NDArray[np.float32]

FAULTY_STEP, FAULTY_MICRO_BATCH, FAULTY_PARAMETER = 2, 1, "weight"
"""Where the fault is, whoever computes it; steps and micro-batches from 0."""


def break_down() -> None:
    """Have the fault from now on."""
    import training.step
    import worker.device_thread
    from training.autograd import Parameter
    from training.step import TrainingStep

    from_mesh = training.step.from_mesh
    under_way = (0, 0)

    class FaultyStep(TrainingStep):
        """Notes what it computes."""

        def micro_batch(
            self, step: int, index: int, out: Float32Array, ready: Callable[[int], None]
        ) -> float:
            """As it is."""
            nonlocal under_way
            under_way = step, index
            return super().micro_batch(step, index, out, ready)

    def faulty(parameter: Parameter, value: Float32Array, mesh: Mesh) -> Float32Array:
        read = from_mesh(parameter, value, mesh)
        if under_way == (FAULTY_STEP, FAULTY_MICRO_BATCH) and parameter.name.endswith(FAULTY_PARAMETER):
            read = read.copy()
            read[read.size // 2] = np.nan
        return read

    vars(worker.device_thread).update(TrainingStep=FaultyStep)
    vars(training.step).update(from_mesh=faulty)


if __name__ == "__main__":
    process.tune_allocator()
    process.single_threaded_blas()
    break_down()
    sys.exit(main())
