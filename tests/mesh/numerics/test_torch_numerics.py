"""The emulator against PyTorch, with autograd, and against ttnn's golden functions, where PyTorch is installed."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.numerics.peer_exchange import assert_matches_peer

ROOT = Path(__file__).resolve().parents[3]
PEERS = ROOT / "tests" / "support" / "numerics"


def find_torch_python() -> str | None:
    """Return an interpreter with PyTorch: this one, or that of the benchmarks; None without one."""
    if find_spec("torch") is not None:
        return sys.executable
    peer = os.environ.get("TIERMESH_PEER_PYTHON")
    python = Path(peer) if peer else ROOT / "build" / "bench" / "torch" / "bin" / "python"
    return str(python) if python.is_file() else None


PYTHON = find_torch_python()
GOLDEN = find_spec("torch") is not None and find_spec("ttnn") is not None


@pytest.mark.skipif(PYTHON is None, reason="no Python here has PyTorch (`make torch` makes one)")
def test_results_equal_pytorch(tmp_path: Path) -> None:
    assert PYTHON is not None
    assert_matches_peer(PYTHON, PEERS / "torch_peer.py", tmp_path)


@pytest.mark.skipif(not GOLDEN, reason="ttnn's golden functions need PyTorch and ttnn in this Python")
def test_results_equal_golden_functions(tmp_path: Path) -> None:
    assert_matches_peer(sys.executable, PEERS / "golden_peer.py", tmp_path)
