"""The sidecar of a file of token ids: `ids.bin.sidecar.json` beside `ids.bin`.

It says what the file must be, so that opening needs nothing else: type and number of ids, the largest one, and the
SHA-256 of each block.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from services.corpora.block_digest import BLOCK_BYTES
from services.corpora.cache import cache_folder, make_cache_folder
from services.corpora.new_file import new_file
from services.errors import Refused
from services.input_files import NoSuchFile, read_input_file
from services.json_text import TOKEN_SIDECAR, check_size, parse_json
from services.printable import one_line, printable_path

SUFFIX = ".sidecar.json"
Dtype = Literal["uint16", "uint32", "int32", "int64"]
"""Types that ids are stored in."""
TOKEN_FILE_BYTES = 1 << 40
"""Largest file of ids: its sidecar has 64 MiB."""
LARGEST_ID = (1 << 32) - 1
ITEM_BYTES: dict[Dtype, int] = {"uint16": 2, "uint32": 4, "int32": 4, "int64": 8}

_CACHE = "sidecars"
_IDENTITY_FIELDS = {"dtype", "offset_bytes", "count", "largest_id", "block_bytes", "block_sha256"}
_HASH_CHARACTERS = 64
IDENTITY_BYTES = TOKEN_SIDECAR.limit_bytes
"""Largest sidecar and `identity_body`, whatever the file's size is now: a file that was cut short is to be told so."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class TokenSidecar(BaseModel):
    """Description of a file of token ids.

    Attributes:
        format: version of this format.
        dtype: type of the ids in the file, little-endian.
        offset_bytes: size of the file's header; the ids follow it.
        count: number of ids.
        largest_id: largest of the ids.
        largest_id_position: index of its first occurrence.
        file_bytes: size of the file.
        modified_ns: time of the file's last change when it was described, in nanoseconds since 1970; 0 if unknown.
        sha256: SHA-256 of the whole file.
        block_bytes: size of a block; the last one may be shorter.
        block_sha256: SHA-256 of each block of the file, one hexadecimal text after the other.
        tokenizer_vocab_size: number of ids of the tokenizer that made them; None if unknown.
        tokenizer_sha256: SHA-256 of that tokenizer's `tokenizer.json`; None if unknown.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    format: Literal[1] = 1
    dtype: Dtype
    offset_bytes: int = Field(ge=0, le=1 << 16)
    count: int = Field(ge=1, le=TOKEN_FILE_BYTES)
    largest_id: int = Field(ge=0, le=LARGEST_ID)
    largest_id_position: int = Field(ge=0)
    file_bytes: int = Field(ge=1, le=TOKEN_FILE_BYTES)
    modified_ns: int
    sha256: Sha256
    block_bytes: Literal[1048576] = BLOCK_BYTES
    block_sha256: str = Field(pattern=r"^[0-9a-f]*$")
    tokenizer_vocab_size: int | None = Field(default=None, ge=1, le=LARGEST_ID + 1)
    tokenizer_sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _fits_itself(self) -> TokenSidecar:
        if self.offset_bytes + self.count * ITEM_BYTES[self.dtype] != self.file_bytes:
            raise ValueError("count, dtype and offset_bytes don't give file_bytes")
        if self.offset_bytes % ITEM_BYTES[self.dtype]:
            raise ValueError("offset_bytes is no multiple of an id's size")
        if len(self.block_sha256) != _HASH_CHARACTERS * -(-self.file_bytes // self.block_bytes):
            raise ValueError("block_sha256 hasn't one hash for each block")
        if self.largest_id_position >= self.count:
            raise ValueError("largest_id_position is beyond count")
        return self

    @cached_property
    def identity(self) -> str:
        """SHA-256 that stands for the ids: of `identity_body`."""
        return hashlib.sha256(self.identity_body()).hexdigest()

    def identity_body(self) -> bytes:
        """Return this description without names, times and the tokenizer, as JSON that depends on the ids alone."""
        body = self.model_dump(include=_IDENTITY_FIELDS)
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()

    def block_hash(self, index: int) -> str:
        """Return the SHA-256 of a block, as hexadecimal text."""
        return self.block_sha256[index * _HASH_CHARACTERS : (index + 1) * _HASH_CHARACTERS]

    def fits(self, status: os.stat_result) -> bool:
        """Return whether a file has the size and the time of the last change that were described."""
        return (status.st_size, status.st_mtime_ns) == (self.file_bytes, self.modified_ns)


def parse_sidecar(content: bytes, place: str) -> TokenSidecar:
    """Return the sidecar in a file's content.

    Args:
        content: JSON, see `TokenSidecar`.
        place: the file, for the error.

    Raises:
        Refused: it is no sidecar, or contradicts itself.
    """
    try:
        check_size(content, TOKEN_SIDECAR)
        return TokenSidecar.model_validate_json(content)
    except ValueError as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            reason = one_line(": ".join([*map(str, first["loc"]), first["msg"]]), 120)
        raise Refused(
            f"{place}: is no sidecar of a token file ({reason}); remove it, and the next submit makes another"
        ) from None


def sidecar_of_copy(identity_body: bytes, sha256: str, path: Path) -> TokenSidecar:
    """Return the sidecar of a copy of a file of ids, from what its identity stands for.

    The copy's time is not in it: its record (`verified`) says whether it has changed since it arrived.

    Args:
        identity_body: `TokenSidecar.identity_body` of the file. The position of the largest id is not in it, and is 0.
        sha256: SHA-256 of the file.
        path: the copy, for the error.

    Raises:
        Refused: it is no such body.
    """
    try:
        body = parse_json(identity_body, TOKEN_SIDECAR)
        size_bytes = body["offset_bytes"] + body["count"] * ITEM_BYTES[body["dtype"]]
        known = {"sha256": sha256, "file_bytes": size_bytes, "modified_ns": 0}
        fields = {**{name: body[name] for name in _IDENTITY_FIELDS}, **known, "largest_id_position": 0}
    except (ValueError, TypeError, KeyError):
        fields = {}
    return parse_sidecar(json.dumps(fields).encode(), printable_path(path))


def load_sidecar(path: Path) -> TokenSidecar | None:
    """Return the sidecar of a file of ids, or None if it has none.

    Args:
        path: the file of ids, which exists. Its sidecar lies beside it, or in the cache if that folder is not writable.

    Raises:
        Refused: the sidecar can't be read, or is none.
    """
    try:
        content = read_input_file("", sidecar_path(path), IDENTITY_BYTES)
        place = sidecar_path(path)
    except NoSuchFile:
        try:
            place = cache_folder(_CACHE) / _cached_name(path)
            content = read_input_file("", place, IDENTITY_BYTES)
        except Refused:
            return None
    except Refused as error:
        reason, _, _ = str(error).rpartition("; ")  # nobody wrote this path, so nobody can correct it
        raise Refused(f"{reason}; remove it, and the next submit makes another") from None
    return parse_sidecar(content, printable_path(place))


def store_sidecar(path: Path, sidecar: TokenSidecar) -> None:
    """Write the sidecar of a file of ids beside it, or into the cache if that folder is not writable.

    Raises:
        Refused: neither place can be written to.
        NotYet: the disk is full or failed.
    """
    content = sidecar.model_dump_json(exclude_none=True).encode() + b"\n"
    try:
        with new_file(sidecar_path(path)) as file:
            file.write(content)
    except Refused:
        with new_file(make_cache_folder(_CACHE) / _cached_name(path)) as file:
            file.write(content)


def sidecar_path(path: Path) -> Path:
    """Return the usual path of a file's sidecar."""
    return path.with_name(path.name + SUFFIX)


def _cached_name(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path.absolute())).hexdigest() + SUFFIX
