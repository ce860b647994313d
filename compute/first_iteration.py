"""What is measured of a job's passes: the time of each, and the memory of the first micro-batch phase by phase."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compute.memory_phases import TRACK_MEMORY, WEIGHTS_LOADED, MemoryPhase, MemoryUsageTracker
from mesh.device import Mesh
from protos.compute_pb2 import PassEnded
from services.pipeline.schedule import Pass
from training.pipeline.passes import PassPhase


class FirstIteration:
    """Memory of the job's first micro-batch, phase by phase, from the making of the model on.

    Args:
        mesh: the mesh whose memory is measured.
        pass_ended: callback, called with the times of each pass.
    """

    def __init__(self, mesh: Mesh, pass_ended: Callable[[PassEnded], None]) -> None:
        self._memory = MemoryUsageTracker(mesh)
        self._has_weights = False
        self._pass_ended = pass_ended
        self._memory.begin_capture()

    @property
    def is_under_way(self) -> bool:
        """Whether weights are on the mesh and the first micro-batch has not ended."""
        return self._has_weights and self._memory.is_capturing

    def note_model(self) -> None:
        """End the phase in which the model is made."""
        self._memory.snapshot("MODEL_CREATION")

    def note_weights(self) -> None:
        """End the phase in which the first weights are loaded; later weights end none."""
        if self._memory.is_capturing:
            self._memory.snapshot(WEIGHTS_LOADED)
            self._has_weights = True

    @contextmanager
    def around(self, phase: PassPhase, one: Pass | None = None) -> Iterator[None]:
        """Tell the times of a pass, and measure the memory of the first one."""
        began_seconds = time.monotonic()
        try:
            yield
        finally:
            ended = PassEnded(
                is_backward=phase is PassPhase.BACKWARD_PASS,
                began_seconds=began_seconds,
                ended_seconds=time.monotonic(),
            )
            if one is not None:
                ended.range, ended.micro_batch = one.range_index, one.micro_batch
            self._pass_ended(ended)
        if self.is_under_way:
            self._memory.snapshot(phase.value)

    def end(self, parameters: int) -> list[MemoryPhase]:
        """End the measuring and return the phases; with TTML_TRACK_MEMORY=1 they are printed too.

        Args:
            parameters: number of the model's parameters, which is printed.
        """
        self._memory.end_capture("FIRST_ITERATION_COMPLETE")
        if os.environ.get(TRACK_MEMORY) == "1":
            self._memory.print_memory_usage(parameters)
        return self._memory.phases

    def clear(self) -> None:
        """Stop measuring."""
        self._memory.clear()
