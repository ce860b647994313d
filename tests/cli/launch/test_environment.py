"""Variables of a rank: tt-run's rules of precedence, what is passed through and what never is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.launch.environment import PASSED_PREFIXES, RANK_VARIABLES, rank_environment
from cli.launch.rank_bindings import parse_rank_bindings
from services.errors import Refused


def _environment(
    parent: dict[str, str],
    overrides: dict[str, str] | None = None,
    *,
    opens_mesh: bool = True,
    rank: int = 0,
    **others: Any,
) -> dict[str, str]:
    ranks = [{"rank": 0, "mesh_id": 4, "env_overrides": overrides}, {"rank": 1, "mesh_id": 5}]
    bindings = parse_rank_bindings({"rank_bindings": ranks, **others}, "file", {})
    return rank_environment(bindings.ranks[rank], bindings, parent, opens_mesh=opens_mesh)


def test_a_worker_drives_mesh_0_of_its_own_descriptor() -> None:
    assert _environment({}) == {"TT_MESH_ID": "0", "TT_MESH_HOST_RANK": "0", "TT_RUN_RANK": "0"}


def test_overrides_win_over_global_and_global_over_the_launcher() -> None:
    parent = {"TT_METAL_HOME": "/launcher", "ARCH_NAME": "launcher", "WH_A": "launcher", "HOME": "/home/me"}
    found = _environment(parent, {"WH_A": "rank"}, global_env={"ARCH_NAME": "all", "WH_A": "all"})
    assert (found["TT_METAL_HOME"], found["ARCH_NAME"], found["WH_A"]) == ("/launcher", "all", "rank")
    assert "HOME" not in found


def test_the_kernel_cache_is_a_ranks_own() -> None:
    assert _environment({"TT_METAL_CACHE": "/c/"}, rank=1)["TT_METAL_CACHE"] == "/c/rank-1"
    assert _environment({}, global_env={"TT_METAL_CACHE": "/g"})["TT_METAL_CACHE"] == "/g/rank-0"
    assert _environment({"TT_METAL_CACHE": "/c"}, {"TT_METAL_CACHE": "/mine"})["TT_METAL_CACHE"] == "/mine"


@pytest.mark.parametrize("name", sorted(RANK_VARIABLES))
def test_what_is_a_ranks_own_is_not_taken_from_the_launcher(name: str) -> None:
    assert _environment({name: "from outside"}).get(name) != "from outside"


def test_roles_without_a_mesh_get_no_devices() -> None:
    overrides = {"TT_VISIBLE_DEVICES": "0", "TT_METAL_CACHE": "/c", "TT_METAL_CLUSTER_ID": "x", "OTHER": "1"}
    found = _environment({"TT_METAL_CACHE": "/p"}, overrides, opens_mesh=False)
    assert found == {"OTHER": "1", "TT_RUN_RANK": "0"}


def test_mocked_clusters_and_factory_descriptors_go_to_workers() -> None:
    others = {"mock_cluster_rank_binding": {0: "/m.yaml"}, "factory_system_descriptor_path": "/f"}
    found = _environment({}, **others)
    assert found["TT_METAL_MOCK_CLUSTER_DESC_PATH"] == "/m.yaml"
    assert found["TT_METAL_FACTORY_SYSTEM_DESCRIPTOR_PATH"] == "/f"
    assert "TT_METAL_MOCK_CLUSTER_DESC_PATH" not in _environment({}, rank=1, **others)


def test_what_no_command_line_can_show_is_refused() -> None:
    with pytest.raises(Refused, match=r"environment variable 'TT_A': 'a\\nb' given"):
        _environment({"TT_A": "a\nb"})


@given(
    st.dictionaries(
        st.sampled_from(["TT_", "MESH_", "PATH", "XTT_", "TTNN_"]).map(lambda each: each + "X"), st.just("v")
    )
)
def test_only_prefixes_of_tt_run_are_passed(parent: dict[str, str]) -> None:
    found = _environment(parent)
    assert {name for name in parent if name in found} == {n for n in parent if n.startswith(PASSED_PREFIXES)}
