"""The lives of an insider that is a process: in each it tells lies of another seed, and each lie is logged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from tests.insider.lies import Afterwards, Liar, Lie, Trick

LIFE_SECONDS = 0.2
"""Time from a lie to the next life."""
PATIENCE_SECONDS = 1.0
"""Time that a life waits for the kind of message that it lies about; then it lies about any."""


class Log:
    """File of the lies that a process has told, which a test counts.

    Args:
        seed: what all of them follow from.
        path: the file.
    """

    def __init__(self, seed: str, path: Path) -> None:
        self._seed, self._path = seed, path

    def note(self, number: int, what: str) -> None:
        """Note a lie of the life, or the call, with this number."""
        with self._path.open("a") as file:
            file.write(f"{self._seed}.{number}: {what.encode('unicode_escape').decode()}\n")


class Lives:
    """The lives of the insider, one after the other.

    Args:
        seed: what all of them follow from.
        log: file of the lies.
        kinds: kinds of messages; each life lies about one of them. With none, its liar draws any.
    """

    def __init__(self, seed: str, log: Path, kinds: tuple[str, ...] = ()) -> None:
        self._seed, self._log, self._kinds = seed, Log(seed, log), kinds
        self._lock = threading.Lock()  # headers are encoded on several threads
        self._number = 0
        self._begin()

    def _begin(self) -> None:
        self._number += 1
        kind = self._kinds[self._number % len(self._kinds)] if self._kinds else ""
        self._liar = Liar(f"{self._seed}.{self._number}", kind=kind)
        self._over_at = float("inf")
        self._hurries_at = time.monotonic() + PATIENCE_SECONDS

    @property
    def over(self) -> bool:
        """Whether the next life is due."""
        return time.monotonic() > self._over_at

    def begin_if_over(self) -> None:
        """Begin the next life if it is due."""
        with self._lock:
            if self.over:
                self._begin()

    @property
    def leaves(self) -> bool:
        """Whether this life is to end now."""
        return self._liar.lies and self._liar.afterwards is Afterwards.LEAVES

    def tell(self, message: Message) -> Lie | None:
        """Return what is told in place of a message; None if that is the truth."""
        with self._lock:
            before = len(self._liar.told)
            self._liar.hurries = time.monotonic() > self._hurries_at
            lie = self._liar.tell(message)
            self._note(before)
            return lie

    def change(self, message: Any) -> None:
        """Change a field of a message, if that is the lie; no other lie is possible where it is encoded."""
        lie = self.tell(message)
        if lie is not None and lie.trick is Trick.FIELD:
            message.CopyFrom(lie.messages[0])

    def perhaps(self, chance: float, make: Callable[[Liar], str]) -> None:
        """With a chance, have a lie told that no message shows by itself.

        Args:
            chance: how likely it is, from 0 to 1.
            make: tells it; returns what it is.
        """
        with self._lock:
            if self._liar.draw.random() >= chance:
                return
            before = len(self._liar.told)
            self._liar.told.append(make(self._liar))
            self._note(before)

    def _note(self, before: int) -> None:
        new = self._liar.told[before:]
        if new:
            self._over_at = min(self._over_at, time.monotonic() + LIFE_SECONDS)
        for each in new:
            self._log.note(self._number, each)
