"""The environment of a rank, by tt-run's rules where they make sense without MPI.

tt-run also hands PATH, HOME, USER, PYTHONPATH, LD_LIBRARY_PATH and VIRTUAL_ENV of the launching host to all others, for
which they must share one file system. Here each host has its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from cli.launch.rank_bindings import RankBinding, RankBindings
from services.errors import Refused

PASSED_PREFIXES = ("TT_", "ARCH_", "WH_", "TTNN_", "RELIABILITY_MODE", "DEEPSEEK_", "MESH_")
"""Beginnings of the variables that all ranks get from the launching process, as with tt-run."""
MOCK_VARIABLE = "TT_METAL_MOCK_CLUSTER_DESC_PATH"
FACTORY_VARIABLE = "TT_METAL_FACTORY_SYSTEM_DESCRIPTOR_PATH"
VISIBLE_VARIABLE = "TT_VISIBLE_DEVICES"
CACHE_VARIABLE = "TT_METAL_CACHE"
RANK_VARIABLES = frozenset(
    {
        "TT_MESH_ID",
        "TT_MESH_HOST_RANK",
        "TT_MESH_GRAPH_DESC_PATH",
        "TT_METAL_CLUSTER_ID",
        "TT_RUN_ORIGINAL_CWD",
        "TT_RUN_RANK",
        "TT_RUN_SUBCONTEXT_ID",
        "TT_RUN_SUBCONTEXT_SIZES",
        MOCK_VARIABLE,
        FACTORY_VARIABLE,
        VISIBLE_VARIABLE,
    }
)
"""Variables that are a rank's own: never taken from the launching process, nor from the host."""
_DEVICE_VARIABLES = (VISIBLE_VARIABLE, CACHE_VARIABLE, MOCK_VARIABLE, FACTORY_VARIABLE, "TT_METAL_CLUSTER_ID")


def rank_environment(
    binding: RankBinding, bindings: RankBindings, parent: Mapping[str, str], *, opens_mesh: bool
) -> dict[str, str]:
    """Return the variables of a rank, but for TT_MESH_GRAPH_DESC_PATH, which depends on the host's folders.

    In order of precedence: what follows from the plan, `env_overrides`, `global_env`, the launching process's.

    Args:
        binding: binding of the rank.
        bindings: bindings of all ranks.
        parent: environment of the launching process.
        opens_mesh: whether the rank is a worker. The others get no variable that selects devices.

    Raises:
        Refused: a variable that is passed has characters that are not printable.
    """
    variables = {**_passed(parent), **bindings.global_env}
    if CACHE_VARIABLE in variables:  # kernels of different chips must not share a folder
        variables[CACHE_VARIABLE] = f"{variables[CACHE_VARIABLE].rstrip('/')}/rank-{binding.rank}"
    variables |= binding.env_overrides
    variables["TT_RUN_RANK"] = str(binding.rank)  # read by tt-triage
    if not opens_mesh:
        return {name: value for name, value in variables.items() if name not in _DEVICE_VARIABLES}
    # The worker's descriptor has its mesh alone, on one host.
    variables |= {"TT_MESH_ID": "0", "TT_MESH_HOST_RANK": "0"}
    if binding.mock_cluster:
        variables.setdefault(MOCK_VARIABLE, binding.mock_cluster)
    if bindings.factory_descriptor:
        variables.setdefault(FACTORY_VARIABLE, bindings.factory_descriptor)
    return variables


def _passed(parent: Mapping[str, str]) -> dict[str, str]:
    passed = {
        name: value
        for name, value in parent.items()
        if name.startswith(PASSED_PREFIXES) and name not in RANK_VARIABLES
    }
    for name, value in passed.items():
        if not (name + value).isprintable():
            raise Refused(
                f"environment variable {name[:60]!r}: {value[:40]!r} given, expected printable characters, since all "
                "ranks get it; correct it or unset it"
            )
    return passed
