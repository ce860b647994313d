"""Tests of the layout: contiguous entries, chunks, hash, and input from peers."""

from __future__ import annotations

import json
import tracemalloc
from math import prod
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.errors import Refused
from services.json_text import LAYOUT
from services.printable import LINE_CHARACTERS
from services.protocol.plan import ParameterCount
from services.tensors.kernels.arithmetic import BLOCK_ELEMENTS
from services.tensors.layout import (
    CHUNK_ELEMENTS,
    MAX_ELEMENTS,
    MAX_ENTRIES,
    Entry,
    Layout,
    chunk_count,
    chunk_range,
    read_job_layout,
)

shapes = st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)
layouts = st.lists(st.tuples(shapes, st.booleans(), st.booleans()), max_size=12).map(
    lambda rows: Layout.build(
        (f"p{index}", shape, decays, f"hf.{index}", transpose)
        for index, (shape, decays, transpose) in enumerate(rows)
    )
)


@given(layouts)
def test_entries_are_contiguous_from_zero_in_the_order_given(layout: Layout) -> None:
    offset = 0
    for index, entry in enumerate(layout.entries):
        assert (entry.name, entry.offset, entry.size) == (f"p{index}", offset, prod(entry.shape))
        offset = entry.stop
    assert layout.elements == offset


@given(layouts)
def test_layout_and_hash_survive_the_json_round_trip(layout: Layout) -> None:
    back = Layout.from_json(json.loads(json.dumps(layout.to_json())))
    assert back == layout
    assert back.hash == layout.hash


@given(layouts, layouts)
def test_hashes_are_equal_exactly_for_equal_layouts(one: Layout, other: Layout) -> None:
    assert (one.hash == other.hash) == (one == other)


@pytest.mark.parametrize(
    "changed",
    [
        Entry("b", (2, 3), 0, True, "hf.a"),
        Entry("a", (3, 2), 0, True, "hf.a"),
        Entry("a", (6,), 0, True, "hf.a"),
        Entry("a", (2, 3), 0, False, "hf.a"),
        Entry("a", (2, 3), 0, True, "hf.b"),
        Entry("a", (2, 3), 0, True, "hf.a", export_transpose=True),
    ],
)
def test_hash_depends_on_every_field(changed: Entry) -> None:
    assert Layout((changed,)).hash != Layout((Entry("a", (2, 3), 0, True, "hf.a"),)).hash


def test_hash_is_stable_across_releases() -> None:
    # Peers and checkpoints of other releases have this hash: it changes only with the protocol version.
    layout = Layout.build([("a", (2, 3), True, "hf.a", False), ("b", (3,), False, "hf.b", True)])
    assert layout.hash == "932a9f877a1c300078354c736dcfb5be773bdf2d9e5a6fbafc302b0b6518ff96"


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ((Entry("a", (2,), 1, True, "a"),), "entry a: offset 1.* 0"),
        ((Entry("a", (2,), 0, True, "a"), Entry("b", (2,), 3, True, "b")), "entry b: offset 3.* 2"),
        ((Entry("a", (2,), 0, True, "a"), Entry("b", (2,), 1, True, "b")), "entry b: offset 1.* 2"),
        ((Entry("a", (2,), 0, True, "a"), Entry("a", (2,), 2, True, "b")), "same name"),
    ],
)
def test_gaps_overlaps_and_duplicates_are_refused(entries: tuple[Entry, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Layout(entries)


def canonical(value: Any) -> str:
    """Return JSON as `Layout.dumps` writes it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize("missing", ["name", "shape", "offset", "decays", "export_name"])
def test_json_without_a_field_is_refused(missing: str) -> None:
    (entry,) = Layout.build([("a", (2,), True, "a", False)]).to_json()
    del entry[missing]
    with pytest.raises(ValueError, match=f"entry 0: .*'{missing}'"):
        Layout.from_json([entry])


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"shape": [1 << 30, 1 << 30]}, rf"{1 << 60} elements.* {MAX_ELEMENTS}"),
        ({"shape": [1 << 60]}, "entry 0: shape: .*8 sizes"),
        ({"shape": [1] * 9}, "shape: .*8 sizes"),
        ({"shape": [0]}, "entry 0: shape"),
        ({"shape": "12"}, "entry 0: shape"),
        ({"offset": False}, "offset .*bool.*int"),
        ({"name": None}, "name .*NoneType.*str"),
        ({"more": 1}, "entry 0: .*'more'"),
        ({"name": "a\nb"}, r"entry 0: name: 'a\\nb'.* 500 "),
        ({"export_name": "x" * 501}, "entry 0: export_name: 'xxx"),
    ],
)
def test_layout_beyond_the_limits_is_refused(changed: dict[str, Any], text: str) -> None:
    (entry,) = Layout.build([("a", (2,), True, "a", False)]).to_json()
    with pytest.raises(ValueError, match=text):
        Layout.loads(canonical([{**entry, **changed}]))


def test_a_layout_of_too_many_entries_is_refused() -> None:
    layout = Layout.build((f"p{index}", (1,), True, "p", False) for index in range(MAX_ENTRIES + 1))
    with pytest.raises(ValueError, match=f"{MAX_ENTRIES + 1} entries, expected at most {MAX_ENTRIES}"):
        Layout.loads(layout.dumps())


@pytest.mark.parametrize("inner", ["[]", "{}", '{"a":[]}', '"ab"', "1e9"])
def test_what_a_worker_describes_takes_little_memory_to_refuse(inner: str) -> None:
    """As many values as are parsed; 64 MiB of empty lists took over a gigabyte."""
    values = LAYOUT.most_values // (1 + sum(map(inner.count, "[{:")))
    text = f"[{','.join([inner] * (values - 10))}]".encode()
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match="layout of the initial weights"):
            read_job_layout(text, ParameterCount())
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("indent", [None, 1])
def test_a_described_layout_is_in_canonical_form(indent: int | None) -> None:
    layout = Layout.build([("a", (2,), True, "a", False)])
    assert read_job_layout(layout.dumps().encode(), ParameterCount(2, "")) == layout
    with pytest.raises(Refused, match="canonical form"):
        read_job_layout(json.dumps(layout.to_json(), indent=indent).encode(), ParameterCount(2, ""))


def assert_one_line(error: ValueError) -> None:
    assert str(error).isprintable()
    assert len(str(error)) <= LINE_CHARACTERS


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)
FIELDS = st.sampled_from(["name", "shape", "offset", "decays", "export_name", "export_transpose"])


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(FIELDS | st.text(max_size=5), VALUES, max_size=7))
@example({f"field-{number:03}": 0 for number in range(100)})
def test_entry_of_any_values_is_parsed_or_refused(changed: dict[str, Any]) -> None:
    (entry,) = Layout.build([("a", (2,), True, "a", False)]).to_json()
    try:
        layout = Layout.loads(canonical([{**entry, **changed}]))
    except ValueError as error:
        assert_one_line(error)
    else:
        assert Layout.loads(layout.dumps()) == layout
        assert layout.elements <= MAX_ELEMENTS


@settings(max_examples=200, deadline=None)
@given(VALUES.map(json.dumps) | st.text(alphabet='[]{}":,0123456789.eE+-truefalsn ', max_size=60))
@example("[" * 100_000)
@example("[" + "9" * 5000 + "]")
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        layout = Layout.loads(text)
    except ValueError as error:
        assert_one_line(error)
        return
    assert layout.elements <= MAX_ELEMENTS


@given(st.integers(0, 10 * CHUNK_ELEMENTS))
def test_chunks_cover_the_layout_and_only_the_last_may_be_short(elements: int) -> None:
    ranges = [chunk_range(elements, chunk) for chunk in range(chunk_count(elements))]
    assert [start for start, _ in ranges] == [index * CHUNK_ELEMENTS for index in range(len(ranges))]
    assert sum(stop - start for start, stop in ranges) == elements
    assert all(stop - start == CHUNK_ELEMENTS for start, stop in ranges[:-1])
    assert all(start < stop for start, stop in ranges)


def test_chunk_is_a_whole_number_of_norm_blocks() -> None:
    assert CHUNK_ELEMENTS % BLOCK_ELEMENTS == 0


def test_empty_layout_has_no_chunks() -> None:
    layout = Layout(())
    assert (layout.elements, layout.chunks) == (0, 0)
