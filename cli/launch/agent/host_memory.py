"""Memory that this host has for daemons: that of the machine, or of the control group that the agent runs in."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path, PurePosixPath

_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def read_host_memory(own_group: Path = _OWN_GROUP, groups: Path = _GROUPS) -> int:
    """Return the memory that processes started here can have at most, in bytes.

    Args:
        own_group: file that names the control group of this process (cgroup v2).
        groups: folder of all control groups.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError):  # a system without control groups
        for line in own_group.read_text().splitlines():
            hierarchy, _, path = line.partition("::")
            if hierarchy == "0":
                limits += _group_limits(groups, PurePosixPath(path))
    return min(limits)


def _group_limits(groups: Path, own: PurePosixPath) -> list[int]:
    """Return the limits of a group and of those above it, in bytes."""
    limits = []
    for group in (own, *own.parents):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int((groups / str(group).lstrip("/") / "memory.max").read_text()))
    return limits
