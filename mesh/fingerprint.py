"""The fingerprint of a worker: everything that its bits depend on, as text to compare and to show."""

from __future__ import annotations

import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from threadpoolctl import threadpool_info

from mesh.device import Mesh

_FEATURES = ("SSE42", "FMA3", "AVX2", "AVX512F", "AVX512_SKX", "ASIMD", "VSX")
"""CPU features by which numpy selects between kernels whose last bits differ."""


def compute_fingerprint(mesh: Mesh) -> dict[str, str]:
    """Return facts by name. Workers with different values may compute different last bits."""
    facts = {
        "backend": mesh.backend,
        "arch": mesh.arch,
        "mesh_shape": f"{mesh.shape[0]}x{mesh.shape[1]}",
        "dtype": str(mesh.dtype).rpartition(".")[2].lower(),
        "numpy": np.__version__,
    }
    if mesh.backend != "emulator":
        facts["board"] = find_board_type(mesh)
        try:
            facts["ttnn"] = version("ttnn")
        except PackageNotFoundError:
            facts["ttnn"] = "unknown"
        return facts
    blas = [library for library in threadpool_info() if library["user_api"] == "blas"]
    facts["emulator"] = str(mesh.tt.__version__)
    facts["blas"] = " ".join(
        sorted(
            {f"{one['internal_api']} {one['version']} {one.get('architecture', '')}".strip() for one in blas}
        )
    )
    facts["threads"] = str(max((int(one["num_threads"]) for one in blas), default=1))
    facts["cpu"] = " ".join((platform.machine(), *_cpu_features()))
    return facts


def find_board_type(mesh: Mesh) -> str:
    """Return the type of system that the chips form, such as `t3k`; `emulator` on the emulator."""
    if mesh.backend == "emulator":
        return mesh.backend
    return str(mesh.tt.cluster.get_cluster_type()).rpartition(".")[2].lower()


def find_idle_code(backend: str) -> tuple[str, ...]:
    """Return the folders of the mesh's code that compute nothing with this backend, relative to the tree."""
    return () if backend == "emulator" else ("mesh/emulator",)


def _cpu_features() -> list[str]:
    # numpy 2 renamed the package that holds the table.
    module = (
        "numpy.core._multiarray_umath" if np.__version__.startswith("1.") else "numpy._core._multiarray_umath"
    )
    found: dict[str, bool] = import_module(module).__cpu_features__
    return [feature for feature in _FEATURES if found.get(feature)]
