"""Token ids written as text: tt-train's YAML and CSV, read in pieces and in constant memory.

PyYAML makes an object of each id, so 100 MB take it a minute and gigabytes. This reader knows the forms that such files
have, and refuses every other one by its line:

    {data_length: 3, tokenizer_vocab_size: 50257, tokens: [5962, 22307, 25]}     tt-train's tools/dataset_to_tokens.py

    tokenizer_vocab_size: 50257              keys in any order, but tokens last
    data_length: 3
    tokens: [5962, 22307, 25]                or one `- 5962` a line, or 5962 22307 25

    5962 22307 25                            a .csv: with spaces, commas or line ends between ids

What it accepts has the meaning that PyYAML gives it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from services.corpora.sidecar import LARGEST_ID
from services.errors import Refused
from services.printable import printable

ID_TEXT_BYTES = 16 << 30
"""Largest file of ids written as text: it is hashed at each opening."""
PIECE_BYTES = 1 << 20
"""Size of a piece of text."""
_LONGEST_GAP_BYTES = 4096
_SHOWN_BYTES = 40

_ID = rb"(?:0|[1-9][0-9]{0,9})"
_SPACES = rb"[ ]{0,64}"
_LINES = rb"[ \r\n]{0,64}"
_PRELUDE = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:%b(?:#[^\n]*)?\r?\n)*(?:---%b\r?\n)?(?:%b(?:#[^\n]*)?\r?\n)*" % (3 * (_SPACES,))
)
_KEY = re.compile(rb"([\"']?)([a-z_]{1,40})\1:(?=[ \r\n])")
_VALUE_IN_LINE = re.compile(rb" %b(%b)%b(?: #[^\n]*)?(?:\r?\n)+" % (_SPACES, _ID, _SPACES))
_VALUE_IN_BRACES = re.compile(rb"%b(%b)%b,%b" % (_LINES, _ID, _LINES, _LINES))

_DIGITS = b"0123456789"
_NO_DIGITS = bytes(set(range(256)) - set(_DIGITS))
_TO_SPACES = bytes.maketrans(b",-", b"  ")


@dataclass(frozen=True)
class _Form:
    """How ids are written: the first one is at the start, and each other one follows a separator.

    Attributes:
        name: the form, for errors.
        separator: pattern of what is between two ids.
        closing: bytes that follow the last id, apart from white space.
    """

    name: str
    separator: bytes
    closing: bytes


_CSV = _Form(
    "with spaces, commas or line ends between them",
    rb"(?:[ \t\r\n]{0,64},[ \t\r\n]{0,64}|[ \t\r\n]{1,64})",
    b"",
)


class IdText:
    """Ids in a file of text.

    Args:
        file: the file, at its start.
        is_yaml: whether it is YAML; else it is CSV.
        place: the file, for errors.

    Attributes:
        tokenizer_vocab_size: number of ids of the tokenizer, if the file says it.

    Raises:
        Refused: the file doesn't begin as such files do.
    """

    def __init__(self, file: BinaryIO, is_yaml: bool, place: str) -> None:
        self._file = file
        self._place = place
        self._line = 1
        self._values: dict[str, int] = {}
        head = self._read()
        self._form = _CSV
        if is_yaml:
            start, self._form = self._parse_head(head)
        else:
            start = len(head) - len(head.lstrip(b" \t\r\n"))
        self._line += head.count(b"\n", 0, start)
        self._rest = head[start:]
        self.tokenizer_vocab_size = self._values.get("tokenizer_vocab_size")
        size = self.tokenizer_vocab_size
        if size is not None and not 1 <= size <= LARGEST_ID + 1:
            raise Refused(
                f"{place}: tokenizer_vocab_size: {size}, expected 1 to {LARGEST_ID + 1}; correct it"
            )

    def pieces(self) -> Iterator[npt.NDArray[np.uint32]]:
        """Yield all ids, in pieces.

        Raises:
            Refused: something else than an id is there, an id is too large, or there are not as many as `data_length`.
        """
        item = re.compile(_ID + self._form.separator)
        rest, count = self._rest, 0
        while block := self._read():
            rest += block
            last = len(rest.rstrip(_NO_DIGITS).rstrip(_DIGITS))  # the last id may be cut, so it waits
            if len(rest) - last > _LONGEST_GAP_BYTES:
                raise self._odd(rest, item)
            if last:
                ids = self._parse(rest[:last], item, count)
                count += ids.size
                yield ids
                rest = rest[last:]
        last = len(rest.rstrip(_NO_DIGITS).rstrip(_DIGITS))
        if last:
            ids = self._parse(rest[:last], item, count)
            count += ids.size
            yield ids
        yield self._parse_last(rest[last:], item, count)
        count += 1
        expected = self._values.get("data_length")
        if expected not in (None, count):
            raise Refused(
                f"{self._place}: has {count} ids, its data_length says {expected}; copy it again, or correct that"
            )

    def _parse_head(self, head: bytes) -> tuple[int, _Form]:
        """Read the keys up to `tokens`; return where the first id is, and how ids are written (Refused)."""
        position = _end_of(_PRELUDE, head, 0)
        in_braces = head[position : position + 1] == b"{"
        if in_braces:
            position = _end_of(re.compile(_LINES), head, position + 1)
        while True:
            key = _KEY.match(head, position)
            if key is None:
                raise self._no_key(head, position)
            position, name = key.end(), key[2].decode()
            if name == "tokens":
                return self._parse_start(head, position, in_braces)
            value = (_VALUE_IN_BRACES if in_braces else _VALUE_IN_LINE).match(head, position)
            if name not in ("tokenizer_vocab_size", "data_length") or name in self._values or value is None:
                raise self._no_key(head, key.start())
            self._values[name] = int(value[1])
            position = value.end()

    def _parse_start(self, head: bytes, position: int, in_braces: bool) -> tuple[int, _Form]:
        """Return the place of the first id, and the form that what is before it begins (Refused)."""
        gap, brace = (_LINES, b"}") if in_braces else (b" " + _SPACES, b"")
        comma = _LINES + b"," + _LINES
        found = re.compile(gap + rb"\[" + _LINES).match(head, position)
        if found is not None:
            return found.end(), _Form("in a list, with commas between them", comma, b"]" + brace)
        found = re.compile(_SPACES + rb"\r?\n(" + _SPACES + rb")- " + _SPACES).match(head, position)
        if found is not None and not in_braces:
            separator = _SPACES + rb"\r?\n" + found[1] + b"- " + _SPACES
            return found.end(), _Form("in lines that begin with a dash", separator, b"")
        found = re.compile(gap + rb"([\"']?)(?=[0-9])").match(head, position)
        if found is not None:
            separator = b"(?: {1,64}|" + _SPACES + rb"\r?\n {1,64})"
            return found.end(), _Form("with spaces between them", separator, found[1] + brace)
        raise self._no_key(head, position)

    def _parse(self, text: bytes, item: re.Pattern[bytes], count: int) -> npt.NDArray[np.uint32]:
        """Return the ids of a text that ends behind a separator (Refused)."""
        rest, items = item.subn(b"", text)
        if rest:
            raise self._odd(text, item)
        values = np.fromstring(text.translate(_TO_SPACES).decode("ascii"), np.int64, sep=" ")
        if values.size != items:
            raise AssertionError(f"{values.size} numbers in {items} items")
        self._line += text.count(b"\n")
        return self._checked(values, count)

    def _parse_last(self, text: bytes, item: re.Pattern[bytes], count: int) -> npt.NDArray[np.uint32]:
        """Return the last id, in an array (Refused)."""
        bare = text.rstrip()
        if self._form.closing and re.fullmatch(_ID, bare.rstrip(b",")):
            raise Refused(
                f"{self._place}: ends without {self._form.closing.decode()}, so it is cut off; copy it again"
            )
        for closing in reversed(self._form.closing):
            if not bare.endswith(bytes([closing])):
                raise self._odd(text, item)
            bare = bare[:-1].rstrip()
        if b"," in self._form.separator:
            bare = bare.removesuffix(b",").rstrip()
        if not re.fullmatch(_ID, bare):
            raise self._odd(text, item)
        return self._checked(np.array([int(bare)]), count)

    def _checked(self, values: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.uint32]:
        """Return ids, after a check that they belong to the vocabulary (Refused)."""
        limit = self.tokenizer_vocab_size or LARGEST_ID + 1
        if values.max() >= limit:
            odd = int(np.argmax(values >= limit))
            owner = "its tokenizer_vocab_size" if self.tokenizer_vocab_size else "ids have 32 bits"
            raise Refused(
                f"{self._place}: id {values[odd]} at position {count + odd}, expected ids below {limit} ({owner}); "
                "tokenize the text again"
            )
        return values.astype(np.uint32)

    def _read(self) -> bytes:
        try:
            return self._file.read(PIECE_BYTES)
        except OSError as error:
            raise Refused(f"{self._place}: can't be read ({error.strerror}); make it readable") from None

    def _no_key(self, head: bytes, position: int) -> Refused:
        line = 1 + head.count(b"\n", 0, position)
        return Refused(
            f"{self._place}: line {line}: {_shown(head, position)} found, expected a file of token ids: the keys "
            "tokenizer_vocab_size and data_length with numbers, then tokens with ids; correct it"
        )

    def _odd(self, text: bytes, item: re.Pattern[bytes]) -> Refused:
        """Return the error about the first place of a text that is no id."""
        position = 0
        while found := item.match(text, position):
            position = found.end()
        line = self._line + text.count(b"\n", 0, position)
        closing = f", closed by {self._form.closing.decode()}" if self._form.closing else ""
        return Refused(
            f"{self._place}: line {line}: {_shown(text, position)} found, expected ids {self._form.name}{closing}; "
            "correct it, or copy the file again"
        )


def _end_of(pattern: re.Pattern[bytes], text: bytes, position: int) -> int:
    found = pattern.match(text, position)
    return position if found is None else found.end()


def _shown(text: bytes, position: int) -> str:
    """Return the word at a position of a text, for an error."""
    words = text[position : position + _SHOWN_BYTES].split()
    return repr(printable(words[0].decode("utf-8", "replace"))) if words else "its end"
