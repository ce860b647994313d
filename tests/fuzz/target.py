"""What a target of `make fuzz` is: a parser that takes any bytes, and refuses bad ones in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.errors import TiermeshError
from services.printable import LINE_CHARACTERS
from services.protocol.checksums import ChecksumMismatch
from services.transport.http2.frames import ProtocolError

REFUSALS = (TiermeshError, ChecksumMismatch, ProtocolError, ValueError)


@dataclass(frozen=True)
class Target:
    """A parser under test.

    Attributes:
        parse: function that parses bytes, or raises one of `REFUSALS`.
        seeds: valid inputs to start from.
        before_authentication: whether a peer reaches it before it has shown who it is.
    """

    parse: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    before_authentication: bool = False

    def run(self, content: bytes) -> None:
        """Parse the bytes.

        Raises:
            AssertionError: a refusal is not one short line.
        """
        try:
            self.parse(content)
        except REFUSALS as refused:
            text = str(refused)
            assert text.isprintable() and 0 < len(text) <= LINE_CHARACTERS, text
