"""The files that a job's config names: found on this host, when the server asks for them by their paths.

The server reads the config, since it knows the format. A file leaves this host only if a text that was sent names its
path, so that a server can't ask for others.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from tiermesh.errors import Failed, error_of
from tiermesh.job_code import JobCode
from tiermesh.transport import BLOCK_BYTES

_TEXT_BYTES = 1 << 20
"""Longest config, and longest file that may name others."""
_BEFORE, _AFTER = r"(?:^|(?<=[\s\"'\[{,:]))", r"(?=[\s\"'\]},#]|$)"

Config = str | os.PathLike[str] | Mapping[str, Any]
"""Path of a job's YAML file, or the content of one."""


@dataclass
class JobFiles:
    """A config, the code that goes with it, and the files that the server has asked for so far.

    Attributes:
        config: text of the YAML file, or its content.
        folder: folder that relative paths start from.
        code: code of the job's own model; None for none.
        sha256: SHA-256 of each file, by its path as the config has it.
    """

    config: str | Mapping[str, Any]
    folder: Path
    code: JobCode | None = None
    sha256: dict[str, str] = field(default_factory=dict)
    _texts: list[str] = field(default_factory=list)
    _sent: set[str] = field(default_factory=set)

    @classmethod
    def read(
        cls, config: Config, overrides: Mapping[str, Any], code: str | os.PathLike[str] | None = None
    ) -> JobFiles:
        """Read a config, and the folder of its code.

        Raises:
            Refused: one of them can't be read, or it or the overrides can't be sent.
        """
        if isinstance(config, Mapping):
            content: str | Mapping[str, Any] = dict(config)
            folder = Path.cwd()
        else:
            path = Path(config)
            content, folder = _read_text(path), path.absolute().parent
        files = cls(content, folder, None if code is None else JobCode.read(code))
        for name, value in (("config", content), ("overrides", dict(overrides))):
            files._texts.append(value if isinstance(value, str) else _to_json(name, value))
        return files

    def names(self, path: str, sha256: str) -> bool:
        """Return whether the submission names a file that the server lacks, so that it is to be sent."""
        return path in self.sha256 or (self.code is not None and self.code.sha256 == sha256)

    def add(self, path: str) -> None:
        """Find a file that the server asks for, and compute its SHA-256.

        Raises:
            Refused: it is not there or can't be read.
            Failed: no text that was sent names it.
        """
        self._check_named(path)
        place = self._find(path)
        if place.suffix in (".yaml", ".yml"):
            self._texts.append(_read_text(place))  # it may name others
        digest = hashlib.sha256()
        for block in read_blocks(place):
            digest.update(block)
        self.sha256[path] = digest.hexdigest()

    def take(self, path: str, sha256: str) -> tuple[Callable[[], bytes | Iterator[bytes]], int]:
        """Return what reads a file that is to be sent, and its size in bytes.

        Raises:
            Failed: it was sent before.
        """
        if path in self._sent:
            raise Failed(
                f"{path}: the server asks again for a file that it has got; its disk may be full, or the file "
                "has changed; submit the job again",
                field=path,
                fix="submit the job again",
            )
        self._sent.add(path)
        if self.code is not None and self.code.sha256 == sha256:
            archive = self.code.archive
            return lambda: archive, len(archive)
        place = self._find(path)
        return partial(read_blocks, place), place.stat().st_size

    def _check_named(self, path: str) -> None:
        """Check that a text which was sent has the path, or that of a folder which it is in, as a word."""
        parents = (
            [] if ".." in path.split("/") else PurePosixPath(path).parents
        )  # `..` would leave the folder
        for name in (path, *(str(each) for each in parents if set(str(each)) - set("./~"))):
            word = re.compile(f"{_BEFORE}{re.escape(name)}/?{_AFTER}", re.MULTILINE)
            if any(word.search(text) for text in self._texts):
                return
        raise Failed(
            f"{path}: the server asks for this file, which the config does not name; check that the address is that of "
            "your cluster",
            field=path,
            fix="check the address",
        )

    def _find(self, path: str) -> Path:
        """Return the place of a file, looked for as `tiermesh submit` does."""
        wanted = Path(os.path.expandvars(path)).expanduser()
        trees = [each.parent for each in (self.folder, *self.folder.parents) if each.name == "configs"][:1]
        places = [self.folder, Path.cwd(), *trees, *(each / "configs" for each in trees)]
        for place in places:
            if (place / wanted).is_file():
                return place / wanted
        looked = ", ".join(dict.fromkeys(map(str, places)))
        raise error_of("config", path, f"a file in {looked}", "correct the path in the config")


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file.

    Raises:
        Refused: it can't be read.
    """
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                yield block
    except OSError as error:
        raise error_of("config", path, f"a readable file ({error.strerror})", "make it readable") from None


def _read_text(path: Path) -> str:
    try:
        if not path.is_file():
            raise error_of("config", path, "the path of a YAML file, or its content", "correct the path")
        if path.stat().st_size > _TEXT_BYTES:
            raise error_of("config", path, f"a file of at most {_TEXT_BYTES} bytes", "give a job's YAML file")
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise error_of("config", path, f"a readable text ({error})", "correct it") from None


def _to_json(name: str, value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise error_of(name, type(value).__name__, f"JSON values ({error})", "give plain values") from None
