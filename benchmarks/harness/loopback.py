"""Loopback with one congestion control for all that is measured, whatever this machine's default is."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.hosts import congestion_control

_NEW_NETWORK = 0x4000_0000  # CLONE_NEWNET; `os.unshare` is there from Python 3.12 on
_SETTING = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_COMMAND_SECONDS = 20.0


@contextmanager
def even_loopback() -> Iterator[str]:
    """Have the processes and sockets of this thread in a network of its own, where TCP uses `congestion_control()`.

    Peers such as MPI don't choose their congestion control, so that of the network must be the same for all. Without
    root the machine's own is used. Yields a line that says which one it is.
    """
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if libc.unshare(_NEW_NETWORK):
            reason = os.strerror(ctypes.get_errno())
            yield f"TCP on loopback: {_SETTING.read_text().strip()}, this machine's (unshare: {reason}; try as root)"
            return
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=_COMMAND_SECONDS)
            _SETTING.write_text(congestion_control())
            yield f"TCP on loopback: {congestion_control()}, for all that is measured"
        finally:
            if libc.setns(here, _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(here)
