"""Several addresses of which one answers: an aggregator and its standbys."""

from __future__ import annotations

from collections.abc import Sequence

from services.errors import Refused
from services.transport.security import split_address


def split_addresses(what: str, text: str) -> tuple[str, ...]:
    """The addresses of `HOST:PORT` or `HOST:PORT,HOST:PORT,...`.

    Raises:
        Refused: a part is no address, or given twice; `what` and the part are named in the message.
    """
    parts = [part.strip() for part in text.split(",")]
    for number, part in enumerate(parts, 1):
        if not part and len(parts) > 1:
            raise Refused(
                f"{what} {text[:300]!r}: part {number} is empty; expected HOST:PORT, or several with a comma between"
            )
        split_address(what, part)
        if part in parts[: number - 1]:
            raise Refused(f"{what} {text[:300]!r}: {part} is given twice; leave one of them out")
    return tuple(parts)


class AddressRotation:
    """Which address is dialled: the one that answered last, and after a failure the next.

    Args:
        addresses: `HOST:PORT` of each; one at least.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)
        self._place = 0
        self._began = 0  # where the round of attempts began

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def current(self) -> str:
        """To be dialled now."""
        return self._addresses[self._place]

    def answered(self) -> None:
        """The current one is who was looked for: the next round begins here."""
        self._began = self._place

    def failed(self) -> bool:
        """Go on to the next one; whether all have been tried."""
        self._place = (self._place + 1) % len(self)
        return self._place == self._began
