"""Rank bindings: tt-run's keys are read, variables expanded, and each wrong entry is refused by file and place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.launch.rank_bindings import parse_rank_bindings, read_rank_bindings
from services.errors import Refused

_ENVIRONMENT = {"HOME": "/home/me", "RACK": "b07"}


def _bindings(*ranks: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"rank_bindings": [dict(each) for each in ranks], **others}


_ONE = {"rank": 0, "mesh_id": 0}


def test_all_keys_of_tt_run(tmp_path: Path) -> None:
    file = tmp_path / "rank_bindings.yaml"
    file.write_text(
        """
rank_bindings:
  - rank: 1
    mesh_id: 0
    mesh_host_rank: 0
    env_overrides: {TT_VISIBLE_DEVICES: 0,1,2,3, TT_METAL_CACHE: $HOME/cache}
    subcontext_id: 0
    subcontext_size: 2
    mesh_graph_desc_path: "other.textproto"
  - rank: 0
    mesh_id: 4
global_env:
  TT_METAL_HOME: "/opt/${RACK}/tt-metal"
mesh_graph_desc_path: "configurations/here/mgd.textproto"
mock_cluster_rank_binding: {0: /mocks/t3k.yaml}
factory_system_descriptor_path: /opt/fsd.textproto
""".replace("0,1,2,3,", '"0,1,2,3",')
    )
    found = read_rank_bindings(file, _ENVIRONMENT)
    first, second = found.ranks
    assert (first.rank, first.mesh_id, first.mesh_host_rank, first.mock_cluster) == (
        0,
        4,
        None,
        "/mocks/t3k.yaml",
    )
    assert (second.rank, second.mesh_id, second.mesh_host_rank) == (1, 0, 0)
    assert second.env_overrides == {"TT_VISIBLE_DEVICES": "0,1,2,3", "TT_METAL_CACHE": "/home/me/cache"}
    assert (second.descriptor, second.mock_cluster) == ("other.textproto", "")
    assert found.global_env == {"TT_METAL_HOME": "/opt/b07/tt-metal"}
    assert found.descriptor == "configurations/here/mgd.textproto"
    assert found.factory_descriptor == "/opt/fsd.textproto"


@pytest.mark.parametrize(
    ("document", "facts"),
    [
        (
            _bindings(_ONE, {"rank": 0, "mesh_id": 1}),
            ["rank_bindings[1].rank: 0", "rank_bindings[0] too", "write 1"],
        ),
        (_bindings(_ONE, {"rank": 2, "mesh_id": 1}), ["rank_bindings[1].rank: 2", "rank 1 is missing"]),
        (_bindings({"rank": -1, "mesh_id": 0}), ["rank_bindings[0].rank: -1", "at least 0"]),
        (_bindings({"rank": 5000, "mesh_id": 0}), ["rank_bindings[0].rank: 5000", "below 1024"]),
        (_bindings({"rank": "0", "mesh_id": 0}), ['rank_bindings[0].rank: "0"', "a whole number"]),
        (_bindings({"mesh_id": 0}), ["rank_bindings[0].rank: missing"]),
        (_bindings({"rank": 0}), ["rank_bindings[0].mesh_id: missing"]),
        (
            _bindings({"rank": 0, "meshid": 1}),
            ["rank_bindings[0].meshid: unknown key", "did you mean mesh_id?"],
        ),
        ({"rank_binding": [_ONE]}, ["rank_binding: unknown key", "did you mean rank_bindings?"]),
        (
            _bindings(_ONE, mesh_graph_descriptor="x"),
            ["mesh_graph_descriptor: unknown key", "mesh_graph_desc_path"],
        ),
        (_bindings(), ["rank_bindings: 0 ranks", "1 to 1024"]),
        ({}, ["rank_bindings: 0 ranks"]),
        ({"rank_bindings": _ONE}, ["rank_bindings: {", "a list"]),
        (
            _bindings({**_ONE, "env_overrides": {"TT_VISIBLE_DEVICES": 0}}),
            ["rank_bindings[0].env_overrides.TT_VISIBLE_DEVICES: 0", "write it in quotes"],
        ),
        (
            _bindings({**_ONE, "env_overrides": {"A": "${NO_SUCH}/x"}}),
            ["rank_bindings[0].env_overrides.A", '"NO_SUCH"', "not set", "write its value"],
        ),
        (_bindings(_ONE, global_env={"A": "$NO_SUCH"}), ["global_env.A", '"NO_SUCH"', "not set"]),
        (_bindings(_ONE, global_env={"A": "${}"}), ["global_env.A", '""', "not set"]),
        (_bindings(_ONE, mesh_graph_desc_path="$NO_SUCH/m"), ["mesh_graph_desc_path", '"NO_SUCH"']),
        (_bindings(_ONE, global_env={"TT_MESH_ID": "1"}), ["global_env.TT_MESH_ID", "remove it"]),
        *(
            (
                _bindings({**_ONE, "env_overrides": {name: "x"}}),
                [f"env_overrides.{name}", "not taken from a file"],
            )
            for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "TIERMESH_TLS_CA", "TIERMESH_TLS_CERT")
        ),
        *(
            (_bindings(_ONE, global_env={name: "x"}), [f"global_env.{name}", "load code", "remove it"])
            for name in (
                "LD_PRELOAD",
                "TIERMESH_TLS_KEY",
                "TIERMESH_INSECURE",
                "OPENSSL_CONF",
                "SSLKEYLOGFILE",
            )
        ),
        (_bindings(_ONE, global_env={"A B": "1"}), ["global_env", '"A B" is no name of a variable']),
        (_bindings(_ONE, global_env={3: "1"}), ["global_env", "3 is no name of a variable"]),
        (_bindings(_ONE, global_env={"A": "a\nb"}), ["global_env.A", "printable characters"]),
        (_bindings(_ONE, global_env=["A=1"]), ["global_env: ['A=1']", "a mapping"]),
        (
            _bindings(_ONE, mock_cluster_rank_binding={3: "x"}),
            ["mock_cluster_rank_binding: rank 3", "0 to 0"],
        ),
        (
            _bindings({**_ONE, "subcontext_id": 1}),
            ["rank_bindings[0].subcontext_id: 1", "a file of their own"],
        ),
    ],
)
def test_what_is_refused(document: dict[str, Any], facts: list[str]) -> None:
    with pytest.raises(Refused) as refused:
        parse_rank_bindings(document, "here/rank_bindings.yaml", _ENVIRONMENT)
    line = str(refused.value)
    assert line.startswith("here/rank_bindings.yaml: ")
    assert all(fact in line for fact in facts), line
    assert len(line) <= 300
    assert line.isprintable()


def test_variables_of_the_host_and_of_tt_train_are_taken() -> None:
    given = {
        "PYTHONPATH": "/models",
        "TIERMESH_DATA": "/data",
        "TT_METAL_PROFILER_DIR": "/p",
        "LDFLAGS": "-g",
    }
    found = parse_rank_bindings(_bindings({**_ONE, "env_overrides": given}, global_env=given), "file", {})
    assert found.global_env == found.ranks[0].env_overrides == given


def test_files_that_are_no_bindings(tmp_path: Path) -> None:
    file = tmp_path / "rank_bindings.yaml"
    for text, fact in (
        ("- 1", "expected a mapping"),
        ("a: [", "line 1"),
        ("rank_bindings: [{rank: 0, rank: 1}]", "twice"),
    ):
        file.write_text(text)
        with pytest.raises(Refused, match=fact):
            read_rank_bindings(file, {})


@given(st.permutations(range(6)), st.lists(st.integers(0, 9), min_size=6, max_size=6))
def test_bindings_are_in_the_order_of_their_ranks(ranks: list[int], meshes: list[int]) -> None:
    document = _bindings(*({"rank": rank, "mesh_id": meshes[rank]} for rank in ranks))
    found = parse_rank_bindings(document, "file", {})
    assert [(each.rank, each.mesh_id) for each in found.ranks] == list(enumerate(meshes))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)
_KEYS = st.sampled_from(
    ["rank", "mesh_id", "mesh_host_rank", "env_overrides", "subcontext_id", "mesh_graph_desc_path"]
)


@given(
    st.lists(st.dictionaries(_KEYS, _VALUES | st.integers(0, 2), max_size=4), max_size=3),
    st.dictionaries(
        st.sampled_from(["global_env", "mesh_graph_desc_path", "mock_cluster_rank_binding"])
        | st.text(max_size=4),
        _VALUES,
        max_size=2,
    ),
)
def test_any_document_gives_bindings_or_one_line(ranks: list[dict[str, Any]], others: dict[str, Any]) -> None:
    try:
        found = parse_rank_bindings({"rank_bindings": ranks, **others}, "file", _ENVIRONMENT)
    except Refused as refused:
        assert str(refused).isprintable()
    else:
        assert [each.rank for each in found.ranks] == list(range(len(ranks)))


def test_an_empty_file_is_told_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "rank_bindings.yaml").write_text("")
    with pytest.raises(Refused, match="null found, expected a mapping with the key rank_bindings"):
        read_rank_bindings(tmp_path / "rank_bindings.yaml", {})
