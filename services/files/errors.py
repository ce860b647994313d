"""Errors about stored files."""

from __future__ import annotations

from services.errors import Failed, Refused


class FileMissing(Refused):
    """The store has no such file."""


class FileDamaged(Failed):
    """The bytes are not those that the SHA-256 names; they are removed, and must be sent again."""


class WrongFile(FileDamaged):
    """All bytes of a file have arrived, and they are not those that the SHA-256 names."""


class UploadUnderWay(Failed):
    """Another peer uploads the same file at the moment."""


class NoRoom(Failed):
    """The disk or the store is full."""
