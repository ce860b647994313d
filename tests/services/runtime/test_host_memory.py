"""Memory of a host: the machine's, or the least limit of the control groups around the process, and what is free."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.protocol.hello import is_host
from services.runtime.host_memory import HostMemory, read_host_memory

BOOT = "6d6f0a4c-3f3c-4a1e-9c0d-1f2e3d4c5b6a"
GIB = 1 << 30
VERSION_1, VERSION_2 = "9:name=systemd:/\n4:cpu,memory:{}\n0::/\n", "1:cpuset:/ignored\n0::{}\n"


def _machine(folder: Path, line: str, own: str, files: dict[str, str]) -> HostMemory:
    """Return what is read on a machine of 64 GiB, of which 48 GiB are free.

    Args:
        folder: new folder for the machine's files.
        line: content of /proc/self/cgroup, with a place for the path of the process's own group.
        own: that path.
        files: content of files of control groups.
    """
    for name, text in {
        "meminfo": f"MemTotal: {64 * GIB >> 10} kB\nMemFree: 1 kB\nMemAvailable: {48 * GIB >> 10} kB\n",
        "sys/kernel/random/boot_id": f"{BOOT}\n",
        "self/cgroup": line.format(own),
    }.items():
        (folder / "proc" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "proc" / name).write_text(text)
    for name, text in files.items():
        (folder / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "groups" / name).write_text(text)
    return read_host_memory(folder / "proc", folder / "groups")


def test_without_limits_it_is_the_machines(tmp_path: Path) -> None:
    expected = HostMemory(BOOT, 64 * GIB, 48 * GIB)
    assert _machine(tmp_path / "none", VERSION_2, "/user", {}) == expected
    assert _machine(tmp_path / "max", VERSION_2, "/user", {"user/memory.max": "max\n"}) == expected
    endless = {"memory/user/memory.limit_in_bytes": "9223372036854771712\n"}
    assert _machine(tmp_path / "endless", VERSION_1, "/user", endless) == expected


@pytest.mark.parametrize("own", ["/user/session", "/user", "/"])
def test_the_least_limit_around_the_process_counts(tmp_path: Path, own: str) -> None:
    """Check groups above the own one; a container sees its own group as the root."""
    limited = own.strip("/").partition("/")[0]
    files = {
        f"{limited}/memory.max".lstrip("/"): f"{16 * GIB}\n",
        "user/session/memory.max": "max\n",
        "other/memory.max": "10\n",
    }
    found = _machine(tmp_path, VERSION_2, own, files)
    inode = (tmp_path / "groups" / limited).stat().st_ino
    assert found == HostMemory(f"{BOOT}/{inode}", 16 * GIB, 16 * GIB)


@pytest.mark.parametrize(
    ("line", "limit", "usage", "droppable", "folder"),
    [
        (VERSION_2, "memory.max", "memory.current", "inactive_file", ""),
        (VERSION_1, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory/"),
    ],
    ids=["version 2", "version 1"],
)
def test_what_a_group_has_taken_is_not_free_but_for_its_cache(
    tmp_path: Path, line: str, limit: str, usage: str, droppable: str, folder: str
) -> None:
    files = {
        f"{folder}pod/{limit}": f"{16 * GIB}",
        f"{folder}pod/{usage}": f"{10 * GIB}",
        f"{folder}pod/memory.stat": f"anon 7\n{droppable} {3 * GIB}\nactive_file {GIB}\n",
    }
    found = _machine(tmp_path / "a", line, "/pod", files)
    assert (found.total_bytes, found.free_bytes) == (16 * GIB, 9 * GIB)
    files[f"{folder}pod/{usage}"] = f"{20 * GIB}"  # for a moment, or after the limit was lowered
    assert _machine(tmp_path / "b", line, "/pod", files).free_bytes == 0


def test_a_group_has_no_more_free_than_its_machine(tmp_path: Path) -> None:
    files = {"pod/memory.max": f"{60 * GIB}", "pod/memory.current": "0"}
    assert _machine(tmp_path, VERSION_2, "/pod", files).free_bytes == 48 * GIB


def test_groups_with_limits_of_their_own_are_apart_and_those_of_one_limit_together(tmp_path: Path) -> None:
    files = {f"{pod}/memory.max": f"{GIB}" for pod in ("one", "other")} | {"one/sub/memory.max": "max"}
    one, other, sub = (
        _machine(tmp_path, VERSION_2, own, files).host for own in ("/one", "/other", "/one/sub")
    )
    assert one != other
    assert one == sub


def test_files_that_say_nothing(tmp_path: Path) -> None:
    found = read_host_memory(tmp_path, tmp_path)
    assert found.host == ""
    assert 0 < found.total_bytes == found.free_bytes


def test_this_host() -> None:
    found = read_host_memory()
    assert found.host == "" or is_host(found.host)
    assert 0 < found.free_bytes <= found.total_bytes
    assert found.hello_fields()["memory_bytes"] == found.total_bytes
