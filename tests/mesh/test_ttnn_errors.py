"""Errors of ttnn become one line with the likely causes and what to run."""

from __future__ import annotations

import pytest

from mesh.ttnn_errors import LIKELY_CAUSES, explain_known_error, explain_open_failure, extract_ttnn_message


@pytest.mark.parametrize(
    ("message", "facts"),
    [
        (
            "Physical chip id 7 not found in control plane chip mapping. You are calling for a chip outside of the "
            "fabric cluster. Check that your mesh graph descriptor specifies the correct topology",
            ["chip 7 is not in the mesh", "`tt-topology -l mesh`", "`tt-smi -r`", "TT_MESH_GRAPH_DESC_PATH"],
        ),
        (
            "Graph specified in MGD could not fit in the discovered physical topology. . Either relax pinnings or",
            [
                "devices or links",
                "TT_MESH_GRAPH_DESC_PATH",
                "`tt-topology -l mesh`",
            ],
        ),
        (
            "Requested mesh shape MeshShape([4, 8]) requires 32 devices, but only 8 devices are available in the "
            "system mesh MeshShape([2, 4]).",
            ["32 devices", "this host has 8", "set mesh_shape to [2, 4]"],
        ),
        (
            "Requested mesh is too big and is not rotatable: MeshShape([2, 4]) and SystemMesh MeshShape([1, 8])",
            ["arranged as [1, 8]", "mesh_shape"],
        ),
        (
            "Custom mesh graph descriptor file not found: /x/y.textproto",
            ["/x/y.textproto", "TT_MESH_GRAPH_DESC_PATH"],
        ),
        ("Fabric is being used but Device 4 is not active. This may", ["device 4 is not in the mesh"]),
        ("Device index 9 out of range. There are 8 devices available.", ["device_ids names chip 9", "has 8"]),
        (
            "Could not find any forwarding direction from src (M0, D0) to dst (M0, D3)",
            ["have no link", "device_config.device_ids", "`tiermesh check --mesh`", "`tt-topology -l mesh`"],
        ),
        (
            "Multiple ethernet cores in the same direction (eth_chan_directions::EAST) are not currently supported.",
            ["have no link", "device_config.device_ids"],
        ),
        ("Trying to get un-initialized fabric context", ["mesh.device.open_mesh"]),
        (
            "Error, tried to set num initialized routers again for device 0",
            ["devices open", "close it"],
        ),
        ("SetFabricConfig(FABRIC_2D) is not allowed while devices are still open: it", ["devices open"]),
        ("SubDeviceManagerTracker is not initialized", ["closed", "mesh.device.open_mesh"]),
        (
            "Fabric Router Sync: Timeout after 10000 ms on Device 3: expected",
            ["device 3 does not answer", "`tt-smi -r`"],
        ),
        ("No chips detected in the cluster", ["no chip", "tt-kmd"]),
        (
            "Invalid TT_MESH_ID: Local mesh binding mesh_id 1 not found in mesh graph descriptor",
            ["TT_MESH_ID is 1, which is not in the mesh graph descriptor"],
        ),
        ("Invalid chip ID in TT_VISIBLE_DEVICES: 9", ["TT_VISIBLE_DEVICES names chip 9"]),
        (
            "Out of Memory: Not enough space to allocate 214748364800 B DRAM buffer across 12 banks, where each",
            ["memory is full", "214748364800 B DRAM", "smaller batch_size"],
        ),
    ],
)
def test_known_errors_say_what_to_do(message: str, facts: list[str]) -> None:
    error = RuntimeError(
        f"TT_FATAL @ /project/x.cpp:1: a == b\ninfo:\n{message}\nbacktrace:\n --- one\n --- two\n"
    )
    text = explain_known_error(error)
    assert text is not None
    assert [each for each in facts if each not in text] == []
    assert "\n" not in text and "one" not in text.split("(ttnn: ")[1].split() and "project" not in text
    assert explain_open_failure(error) == text


def test_causes_are_in_order_of_likelihood() -> None:
    error = RuntimeError(
        "TT_THROW @ /project/x.cpp:1: tt::exception\ninfo:\nread of a register failed\nbacktrace:\n"
    )
    assert explain_known_error(error) is None
    text = explain_open_failure(error)
    assert text == f"read of a register failed; {LIKELY_CAUSES}"
    steps = [
        "another process",
        "`tt-smi -r`",
        "`tt-topology -l mesh`",
        "mesh_shape or TT_MESH_GRAPH_DESC_PATH",
    ]
    places = [text.index(step) for step in steps]
    assert places == sorted(places)


def test_messages_of_ttnn_are_cut_to_one_line() -> None:
    assert extract_ttnn_message(RuntimeError("one\ntwo\nbacktrace:\n x")) == "one two"
    assert len(extract_ttnn_message(RuntimeError("word " * 200))) < 250
