"""What a compute process is to build, what it may say that it has built, and the memory that both ends map."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from protos import compute_pb2 as pb
from services.errors import Failed
from services.pipeline.split import StageRun
from services.runtime.host_memory import read_host_memory
from services.tensors.layout import Layout
from services.tensors.shared_memory import make_memory


@dataclass(frozen=True)
class JobOrder:
    """What a compute process is to build.

    Attributes:
        job: id of the job.
        spec_json: its config.
        places: where inputs are that were fetched, by the path that the job names.
        stages: the stages of its pipeline to build; None for the whole model.
        data_dir: folder that is searched for inputs missing at the job's path; None for none.
        allowed_models: code of users' own models that the job may name.
        code_folder: folder that its own model is imported from; None for where it is installed.
    """

    job: str
    spec_json: str
    places: Mapping[str, Path]
    stages: StageRun | None
    data_dir: Path | None
    allowed_models: tuple[str, ...] = ()
    code_folder: Path | None = None

    def to_message(self) -> pb.OpenJob:
        """Return the request."""
        return pb.OpenJob(
            job=self.job,
            spec_json=self.spec_json,
            places={path: str(place) for path, place in self.places.items()},
            first_stage=self.stages.first if self.stages else 0,
            stages=self.stages.count if self.stages else 0,
            data_dir=str(self.data_dir.absolute()) if self.data_dir else "",
            allowed_models=self.allowed_models,
            code_folder=str(self.code_folder or ""),
        )


@dataclass
class BuildWatch:
    """What is called while a job is built.

    Attributes:
        mesh_opened: called when the mesh is open.
        file_read: called with a file, the bytes that are read and its size; what it raises ends the build.
    """

    mesh_opened: Callable[[pb.MeshOpened], None]
    file_read: Callable[[Path, int, int], None]


@dataclass
class PassWatch:
    """What is called while passes run.

    Attributes:
        fetch: called by a pass before it uses a parameter that is not on the mesh, with its index in the layout.
        non_finite: called with a micro-batch's index and a parameter's name, if that gradient is not finite.
        memory_measured: called once, with the memory of the first micro-batch by phase.
    """

    fetch: Callable[[int], None]
    non_finite: Callable[[int, str], None]
    memory_measured: Callable[[pb.MemoryMeasured], None]


class SharedMemory:
    """Memory that the compute process maps too: sealed, and freed with the last mapping.

    Args:
        size_bytes: its size.

    Attributes:
        descriptor: file descriptor of it.
        values: all of it, uint8.
    """

    def __init__(self, size_bytes: int) -> None:
        free_bytes = read_host_memory().free_bytes
        if (
            size_bytes > free_bytes
        ):  # its pages are allocated at once, also for a model that only claims its size
            raise Failed(
                f"{size_bytes} bytes of shared memory are needed, and {free_bytes} are free; free memory"
            )
        try:
            self.descriptor = make_memory(max(size_bytes, mmap.PAGESIZE))
        except OSError as error:
            raise Failed(
                f"{size_bytes} bytes of shared memory can't be created ({error.strerror or error}); free memory"
            ) from None
        self.values: npt.NDArray[np.uint8] = np.frombuffer(mmap.mmap(self.descriptor, 0), np.uint8)

    def close(self) -> None:
        """Close the descriptor; views stay valid."""
        os.close(self.descriptor)


def check_built(built: pb.JobBuilt, layout: Layout, ranges: Mapping[int, slice]) -> None:
    """Check that what was built has parts of its layout, in order (ValueError)."""
    stop = 0
    for index, own in ranges.items():
        if index >= built.all_ranges:
            raise ValueError(f"range {index}, expected less than {built.all_ranges}")
        if not stop <= own.start < own.stop <= layout.elements:
            raise ValueError(f"range {index} from {own.start} to {own.stop} of {layout.elements} elements")
        stop = own.stop
    if not ranges or len(ranges) != len(built.ranges):
        raise ValueError(f"ranges {[each.index for each in built.ranges]}, expected one or more, each once")
    loaded = list(built.loaded)
    if not loaded or loaded != sorted({*loaded}) or loaded[-1] >= len(layout.entries):
        raise ValueError("the loaded entries are not in order, or are not in the layout")
