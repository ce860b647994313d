"""The targets of jobs' `notify`, which the operator defines in a file.

A line is `NAME FORM URL`; lines that begin with `#` are comments. The URL of a webhook is a secret: who has it can
post. So the file must be readable by its user alone, and a URL is written into no log, error, status or metric.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args
from urllib.parse import urlsplit

from services.errors import Refused
from services.names import NAME_FORM, is_name
from services.printable import printable_path
from services.transport.access.watched_files import WatchedFiles, read_small_file

MOST_TARGETS = 16
"""Largest number of targets; each may have a thread."""
FLAG = "--notify-targets"

Form = Literal["json", "slack"]


@dataclass(frozen=True)
class Target:
    """A webhook.

    Attributes:
        name: name by which jobs choose it.
        form: form of its messages.
        url: its URL, a secret.
    """

    name: str
    form: Form
    url: str = field(repr=False)


Targets = Mapping[str, Target]
"""Targets by name."""


class TargetFile:
    """The targets of a file, which is read again after it has changed. It is safe on any thread.

    Args:
        path: the file; None for no targets.

    Raises:
        Refused: it can't be used.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._watched = None if path is None else WatchedFiles([path], lambda: read_targets(path))

    def content(self) -> Targets:
        """Return the targets."""
        return {} if self._watched is None else self._watched.content()

    def check(self, name: str) -> None:
        """Check that a target is defined.

        Raises:
            Refused: it is not; the error names those that are.
        """
        names = sorted(self.content())
        if name not in names:
            expected = f"expected {', '.join(names)}" if names else "but this aggregator has no targets"
            raise Refused(
                f"training_config.notify: {name} given, {expected}; correct it, or have the operator define it with "
                f"{FLAG}"
            )


def read_targets(path: Path) -> Targets:
    """Return the targets of a file.

    Raises:
        Refused: others can read it, it can't be read, or a line is wrong.
    """
    targets: dict[str, Target] = {}
    text = read_small_file(FLAG, path)
    _check_mode(path)
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            target = _parse(f"{FLAG} {printable_path(path)}: line {number}", line)
            if target.name in targets:
                raise Refused(
                    f"{FLAG} {printable_path(path)}: line {number}: {target.name} is there twice; remove one line"
                )
            targets[target.name] = target
    if len(targets) > MOST_TARGETS:
        raise Refused(
            f"{FLAG} {printable_path(path)}: has {len(targets)} targets, expected at most {MOST_TARGETS}; remove some"
        )
    return targets


def _check_mode(path: Path) -> None:
    try:
        status = path.stat()
    except OSError as error:  # it went while it was read
        raise Refused(
            f"{FLAG} {printable_path(path)}: can't be read ({error.strerror}); see the file"
        ) from None
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077 or status.st_uid not in (os.geteuid(), 0):
        raise Refused(
            f"{FLAG} {printable_path(path)}: has mode {mode:04o} and user {status.st_uid}, expected a file that only "
            f"user {os.geteuid()} can read, as it has secrets; run chmod 600 on it"
        )


def _parse(where: str, line: str) -> Target:
    """Return the target of a line. Errors don't quote the line, which has a secret."""
    parts = line.split()
    if len(parts) != 3:
        raise Refused(f"{where}: has {len(parts)} words, expected NAME FORM URL")
    name, form, url = parts
    if form not in get_args(Form):
        raise Refused(f"{where}: the form is none of {', '.join(get_args(Form))}; correct the second word")
    if not is_name(name):
        raise Refused(f"{where}: the first word is no name, expected {NAME_FORM}; correct it")
    try:
        found = urlsplit(url)
        # A port that is no number raises an error only when it is asked for.
        fits = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        fits = False
    if not fits or found.username is not None or not url.isprintable():
        raise Refused(
            f"{where}: the third word is no URL of a webhook, expected https://HOST/PATH without a user; correct it"
        )
    return Target(name, cast(Form, form), url)
