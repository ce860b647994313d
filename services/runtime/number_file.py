"""A file with one number that survives power loss, and can be changed on a full disk.

The file has two blocks. Each holds a number and its checksum. A write overwrites the block with the lower number, so it
needs no space, and a write that is cut short leaves the other number intact. The higher number counts.
"""

from __future__ import annotations

import os
from pathlib import Path

from native import crc32c
from services.durable_files import replace_file
from services.errors import Failed, Refused
from services.input_files import NoSuchFile, open_input_file, read_input_file
from services.printable import printable, printable_path

_BLOCK_BYTES = 4096
_BLOCKS = 2
_MOST_BYTES = 1 << 16
_MOST_DIGITS = 20
_SHOWN_CHARACTERS = 40


class NumberFile:
    """The file at a path.

    Args:
        path: the file; it need not exist.
        most: largest number it may hold.
        meaning: what the number is, for errors.
    """

    def __init__(self, path: Path, most: int, meaning: str) -> None:
        self._path, self._shown = path, printable_path(path)
        self._most = most
        self._meaning = meaning

    def read(self) -> int:
        """Return the number; 0 if the file does not exist.

        Raises:
            Refused: the file is damaged, or can't be read.
        """
        try:
            with open_input_file("", self._path) as file:
                return max(self._numbers(file.read(_BLOCKS * _BLOCK_BYTES)))
        except NoSuchFile:
            return 0
        except OSError as error:
            raise Refused(f"{self._shown}: can't be read ({error.strerror}); make it readable") from None
        except ValueError as error:
            raise Refused(
                f"{self._shown}: damaged, {error}; put back a copy, or write one number into it: {self._meaning}"
            ) from None

    def write(self, number: int) -> None:
        """Store a number durably: it survives power loss once this returns.

        Raises:
            Failed: the file can't be written.
        """
        try:
            content = read_input_file("", self._path, _MOST_BYTES) if self._path.exists() else b""
            if len(content) != _BLOCKS * _BLOCK_BYTES:
                replace_file(self._path, _block(number) * _BLOCKS)
                return
            blocks = [self._number_in(block) for block in _split(content)]
            with self._path.open("r+b", buffering=0) as file:
                file.seek(_BLOCK_BYTES * min(range(_BLOCKS), key=lambda index: blocks[index]))
                file.write(_block(number))
                os.fsync(file.fileno())
        except OSError as error:
            raise Failed(f"{self._shown}: not written: {error.strerror or error}") from error

    def _numbers(self, content: bytes) -> list[int]:
        """Return the numbers in a file's blocks; one that a person wrote has one, as text (ValueError)."""
        if len(content) < _BLOCKS * _BLOCK_BYTES:
            digits = content.strip()
            if not digits.isdigit() or len(digits) > _MOST_DIGITS or int(digits) > self._most:
                found = printable(repr(content), _SHOWN_CHARACTERS)
                raise ValueError(f"{found} found, expected a number from 0 to {self._most}")
            return [int(digits)]
        numbers = [number for block in _split(content) if (number := self._number_in(block)) >= 0]
        if not numbers:
            raise ValueError("both of its blocks are")
        return numbers

    def _number_in(self, block: bytes) -> int:
        """Return the number in a block; -1 if it is damaged or was not written to its end."""
        words = block.split()
        if (
            len(words) != 2
            or not words[0].isdigit()
            or len(words[0]) > _MOST_DIGITS
            or block != _block(int(words[0]))
        ):
            return -1
        number = int(words[0])
        return number if number <= self._most else -1


def _split(content: bytes) -> list[bytes]:
    return [content[start : start + _BLOCK_BYTES] for start in range(0, _BLOCKS * _BLOCK_BYTES, _BLOCK_BYTES)]


def _block(number: int) -> bytes:
    """Return a block: the number and its CRC-32C as text, then spaces."""
    text = str(number)
    return f"{text} {crc32c.value(text.encode()):08x}\n".encode().ljust(_BLOCK_BYTES)
