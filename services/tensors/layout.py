"""The layout: all parameters of a model in order of first use in the forward pass, as one flat float32 array.

Aggregator and optimizer know tensors by layout only, never models. The flat array is cut into chunks of
`CHUNK_ELEMENTS`; a chunk is the unit of one message and of one update.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from typing import Any

from services.errors import Refused
from services.json_text import LAYOUT, parse_json
from services.printable import printable
from services.protocol.plan import ParameterCount

CHUNK_ELEMENTS = 512 * 1024
"""Number of elements of a chunk: 2 MiB of float32, 1 MiB of bfloat16. The last chunk may be shorter."""
MAX_ELEMENTS = 1 << 40
"""Maximum number of elements of a layout from a peer or file: 4 TiB of float32. A larger one must be damaged."""
MAX_ENTRIES = 1 << 15
"""Maximum number of parameters of a layout from a peer or file: twice those of the deepest GPT-2."""
MAX_DIMENSIONS = 8
"""Maximum number of dimensions of a parameter in a layout from a peer or file."""
MAX_NAME_CHARACTERS = 500
"""Maximum length of a parameter's name in a layout from a peer or file. Names are shown to people."""

_TYPES = {"name": str, "offset": int, "decays": bool, "export_name": str, "export_transpose": bool}


@dataclass(frozen=True)
class Entry:
    """One parameter of a layout.

    Attributes:
        name: name of the parameter in our model, such as `blocks.0.attention.qkv.weight`.
        shape: logical shape, without the padding that the mesh adds.
        offset: index of its first element in the flat array.
        decays: whether weight decay applies to it.
        export_name: name of its tensor in `model.safetensors`, which is Hugging Face's.
        export_transpose: whether the exported tensor is the transpose of ours.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    decays: bool
    export_name: str
    export_transpose: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def stop(self) -> int:
        """Index after its last element in the flat array."""
        return self.offset + self.size


@dataclass(frozen=True)
class Layout:
    """The parameters of a model, contiguous from offset 0."""

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        """Check that the entries are contiguous and that their names differ; raise ValueError otherwise."""
        expected = 0
        for entry in self.entries:
            if entry.offset != expected:
                raise ValueError(f"layout entry {entry.name}: offset {entry.offset}, expected {expected}")
            expected = entry.stop
        if len({entry.name for entry in self.entries}) != len(self.entries):
            raise ValueError("layout: two entries have the same name")

    @classmethod
    def build(cls, parameters: Iterable[tuple[str, tuple[int, ...], bool, str, bool]]) -> Layout:
        """Return the layout of parameters in order of first use.

        Args:
            parameters: (name, shape, decays, export_name, export_transpose) of each, as in `Entry`.
        """
        entries: list[Entry] = []
        offset = 0
        for name, shape, decays, export_name, export_transpose in parameters:
            entries.append(Entry(name, tuple(shape), offset, decays, export_name, export_transpose))
            offset = entries[-1].stop
        return cls(tuple(entries))

    @property
    def elements(self) -> int:
        """Number of elements of the flat array."""
        return self.entries[-1].stop if self.entries else 0

    @property
    def chunks(self) -> int:
        """Number of chunks of the flat array."""
        return chunk_count(self.elements)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON text, in hexadecimal. Equal layouts have equal hashes in all processes."""
        return hashlib.sha256(self.dumps().encode()).hexdigest()

    def dumps(self) -> str:
        """Return canonical JSON text: keys sorted, no spaces."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def loads(cls, text: str) -> Layout:
        """Parse the text that `dumps` returns.

        Raises:
            ValueError: the text is no layout; names the entry and field.
        """
        return cls.from_json(parse_json(text.encode(), LAYOUT))

    def to_json(self) -> list[dict[str, Any]]:
        """Return the entries as JSON values."""
        return [asdict(entry) for entry in self.entries]

    @classmethod
    def from_json(cls, entries: Any) -> Layout:
        """Return the layout of entries that `to_json` returned.

        Raises:
            ValueError: the entries are no layout; names the entry and field.
        """
        if not isinstance(entries, list):
            raise ValueError("layout: expected a list of entries")
        if len(entries) > MAX_ENTRIES:
            raise ValueError(f"layout: {len(entries)} entries, expected at most {MAX_ENTRIES}")
        layout = cls(tuple(_parse_entry(index, fields) for index, fields in enumerate(entries)))
        if layout.elements > MAX_ELEMENTS:
            raise ValueError(f"layout: {layout.elements} elements, expected at most {MAX_ELEMENTS}")
        return layout


def read_job_layout(content: bytes, parameters: ParameterCount) -> Layout:
    """Return the layout in a peer's file, which must be that of a job's model.

    Args:
        content: content of the file.
        parameters: number of the model's parameters.

    Raises:
        Refused: it is no layout, or has another number of elements.
    """
    try:
        layout = Layout.from_json(parse_json(content, LAYOUT))
        if layout.dumps().encode() != content:
            raise ValueError("not in its canonical form, as Layout.dumps writes it")
    except ValueError as error:
        raise Refused(
            f"layout of the initial weights: {error}; install the same version of Tiermesh on all hosts"
        ) from None
    refusal = parameters.check(layout.elements)
    if refusal is not None:
        raise Refused(f"layout of the initial weights: {refusal}")
    return layout


def _parse_entry(index: int, fields: Any) -> Entry:
    """Return the entry of JSON values, which come from a peer or file unchecked."""
    place = f"layout entry {index}"
    if not isinstance(fields, dict):
        raise ValueError(f"{place}: expected an object")
    fields = {"export_transpose": False, **fields}
    if fields.keys() != _TYPES.keys() | {"shape"}:
        odd = sorted(fields.keys() ^ (_TYPES.keys() | {"shape"}))
        wrong = printable(", ".join(f"{name!r:.60}" for name in odd[:10]), 120)
        raise ValueError(f"{place}: fields missing or unknown: {wrong}")
    for name, kind in _TYPES.items():
        if type(fields[name]) is not kind:
            raise ValueError(
                f"{place}: {name} is a {type(fields[name]).__name__}, expected a {kind.__name__}"
            )
    shape = fields["shape"]
    sizes = isinstance(shape, list | tuple) and all(
        type(size) is int and 0 < size <= MAX_ELEMENTS for size in shape
    )
    if not sizes or len(shape) > MAX_DIMENSIONS:
        raise ValueError(
            f"{place}: shape: expected at most {MAX_DIMENSIONS} sizes, each from 1 to {MAX_ELEMENTS}"
        )
    for name in ("name", "export_name"):
        if not fields[name].isprintable() or len(fields[name]) > MAX_NAME_CHARACTERS:
            raise ValueError(
                f"{place}: {name}: {fields[name]!r:.60}, "
                f"expected at most {MAX_NAME_CHARACTERS} printable characters"
            )
    return Entry(**{**fields, "shape": tuple(shape)})


def chunk_count(elements: int) -> int:
    """Return the number of chunks of a flat array."""
    return -(-elements // CHUNK_ELEMENTS)


def chunk_range(elements: int, chunk: int) -> tuple[int, int]:
    """Return the index of a chunk's first element, and the index after its last.

    Args:
        elements: number of elements of the flat array.
        chunk: index of the chunk.
    """
    start = chunk * CHUNK_ELEMENTS
    return start, min(start + CHUNK_ELEMENTS, elements)
