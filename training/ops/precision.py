"""Precision of products and sums on the device: full mantissas and float32 sums. The emulator always computes so."""

from __future__ import annotations

from typing import Any

from mesh.device import Mesh


def accurate(mesh: Mesh) -> Any:
    """Return the compute kernel config for ops that add many terms; by default the library adds in 16 bits."""
    tt = mesh.tt
    return tt.WormholeComputeKernelConfig(
        math_fidelity=tt.MathFidelity.HiFi4, math_approx_mode=False, fp32_dest_acc_en=True, packer_l1_acc=True
    )
