"""Any content of a descriptor file is either read or refused in one line (property tests)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mesh.descriptors.read import format_textproto, read_descriptor
from services.errors import Refused
from tests.mesh.descriptors.test_descriptors import LINE
from tests.support.anything import is_one_line

NUMBERS = st.integers(-2, 9) | st.sampled_from([1 << 31, 1 << 70])
VALUES = st.recursive(
    st.none()
    | NUMBERS
    | st.booleans()
    | st.text(max_size=4)
    | st.floats()
    | st.sampled_from(["M0", "M²", "T3K"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
PAIRS = st.lists(NUMBERS, min_size=2, max_size=2)
MESHES = st.lists(
    st.fixed_dictionaries(
        {"id": NUMBERS, "board": st.just("B"), "device_topology": PAIRS, "host_topology": PAIRS}
    )
    | VALUES,
    max_size=3,
)
LEGACY = st.fixed_dictionaries(
    {
        "ChipSpec": st.just({"arch": "wormhole_b0", "ethernet_ports": {"N": 2}})
        | st.fixed_dictionaries(
            {"arch": st.just("blackhole"), "ethernet_ports": st.dictionaries(st.text(max_size=1), VALUES)}
        ),
        "Board": st.just([{"name": "B", "type": "Torus"}]) | VALUES,
        "Mesh": MESHES,
    },
    optional={"RelaxedGraph": VALUES | st.lists(VALUES, max_size=2), "Graph": VALUES},
)


def check_read_or_refused(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.write_bytes(content)
    try:
        descriptor = read_descriptor(path)
    except Refused as error:
        assert is_one_line(error)
    else:
        assert format_textproto(descriptor)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("descriptors")


@settings(max_examples=80, deadline=None)
@given(document=LEGACY)
@example(
    {"ChipSpec": {"arch": "blackhole", "ethernet_ports": {}}, "Board": [], "Mesh": [], "RelaxedGraph": 5}
)
def test_any_legacy_document(folder: Path, document: Any) -> None:
    check_read_or_refused(folder, "any.yaml", yaml.safe_dump(document).encode())


@settings(max_examples=100, deadline=None)
@given(
    content=st.binary(max_size=40)
    | st.text(alphabet="abc:{}[]&*!|>-?#'\"%@, \n\t019.e_=<", max_size=40).map(str.encode)
)
@example(b"[" * 5_000)
@example(b"a: 2001-99-99")
@example(b"a: " + b"9" * 5000)
def test_any_yaml(folder: Path, content: bytes) -> None:
    check_read_or_refused(folder, "any.yaml", content)


TOKENS = st.sampled_from(
    [*LINE.split(), "{", "}", "[", "]", "<", "9" * 30, "-1", "'\\ud800'", '"\\xff"', "[a.b/c]"]
)


@settings(max_examples=100, deadline=None)
@given(cut=st.integers(0, len(LINE)), tokens=st.lists(TOKENS | st.text(max_size=4), max_size=12))
@example(0, ["a {"] * 5000)
def test_any_textproto(folder: Path, cut: int, tokens: list[str]) -> None:
    content = LINE[:cut] + " " + " ".join(tokens) + LINE[cut:]
    check_read_or_refused(folder, "any.textproto", content.encode("utf-8", "surrogatepass"))
