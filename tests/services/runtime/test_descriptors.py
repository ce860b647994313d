"""How file descriptors are shared between ports and files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from services.runtime.descriptors import DESCRIPTORS_OF_A_MAIN_CONNECTION, limit_ports


@pytest.mark.parametrize("descriptors", [64, 256, 1024, 4096, 20_000, 65_536])
def test_ports_leave_half_of_the_descriptors(descriptors: int) -> None:
    limits = limit_ports(descriptors)
    parts = (limits.main.connections, limits.tensors.connections, limits.metrics.connections)
    assert min(parts) >= 1
    assert DESCRIPTORS_OF_A_MAIN_CONNECTION * parts[0] + parts[1] + parts[2] <= descriptors // 2


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    script = (
        "import resource; from services.runtime.descriptors import raise_descriptor_limit as up\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 900))\n"
        "print(up(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["900", "900", "900"]
