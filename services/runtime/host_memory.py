"""Memory that processes started here can have, and what of it is free: the machine's, or that of a control group."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class HostMemory:
    """Memory that this process shares with the others of its host.

    Attributes:
        host: id of what has the memory: the boot id of the kernel, with `/INODE` of the control group whose limit is
            less than the machine's memory. So processes have the same id if and only if their memory adds up. Empty if
            the kernel tells no boot id.
        total_bytes: memory of the machine, or the least limit of the control groups around this process.
        free_bytes: what can still be taken of it; caches that the kernel can drop count as free.
    """

    host: str
    total_bytes: int
    free_bytes: int

    def hello_fields(self) -> dict[str, Any]:
        """Return the fields of a Hello about it."""
        return {
            "host": self.host,
            "memory_bytes": self.total_bytes,
            "memory_free_bytes": self.free_bytes,
        }


class _Files(NamedTuple):
    """Where a version of control groups has its numbers."""

    folder: str
    limit: str
    usage: str
    droppable: str
    kills: str


_VERSION_1 = _Files(
    "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"
)
_VERSION_2 = _Files("", "memory.max", "memory.current", "inactive_file", "memory.events")


def read_host_memory(proc: Path = _PROC, groups: Path = _GROUPS) -> HostMemory:
    """Return the memory that processes started here share.

    Args:
        proc: the kernel's files about processes.
        groups: folder of all control groups, of version 1 or 2.
    """
    machine = _read_table(proc / "meminfo", scale=1024)
    total = machine.get("MemTotal:", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    free = machine.get("MemAvailable:", total)
    boot = host = _read_text(proc / "sys" / "kernel" / "random" / "boot_id")
    for folder, files in _own_groups(_read_text(proc / "self" / "cgroup"), groups):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            limit = int((folder / files.limit).read_text())
            if limit < total:
                total, host = limit, f"{boot}/{folder.stat().st_ino}" if boot else ""
            used = int((folder / files.usage).read_text())
            droppable = _read_table(folder / "memory.stat").get(files.droppable, 0)
            free = min(free, limit - used + droppable)
    return HostMemory(host, total, max(min(free, total), 0))


def count_memory_kills(proc: Path = _PROC, groups: Path = _GROUPS) -> int:
    """Return how many processes of this control group the kernel has killed for lack of memory; 0 if it tells none.

    Args:
        proc: the kernel's files about processes.
        groups: folder of all control groups, of version 1 or 2.
    """
    for folder, files in _own_groups(_read_text(proc / "self" / "cgroup"), groups):
        kills = _read_table(folder / files.kills).get("oom_kill")
        if kills is not None:
            return kills
    return 0


def _own_groups(text: str, groups: Path) -> Iterator[tuple[Path, _Files]]:
    """Yield the folders of the control groups of this process and of those above them.

    Args:
        text: lines `ID:CONTROLLERS:PATH`. The line of version 2 has no controllers.
        groups: folder of all control groups.
    """
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        files = _VERSION_1 if controllers else _VERSION_2
        own = PurePosixPath(path)
        for group in (own, *own.parents):
            yield groups / files.folder / str(group).lstrip("/"), files


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _read_table(path: Path, scale: int = 1) -> Mapping[str, int]:
    """Return the numbers of a file with lines `NAME NUMBER ...`, times a scale."""
    rows = (line.split() for line in _read_text(path).splitlines())
    return {row[0]: int(row[1]) * scale for row in rows if len(row) > 1 and row[1].isdigit()}
