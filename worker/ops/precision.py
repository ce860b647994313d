"""How exactly the device's matrix engine computes: full mantissas, float32 sums. The emulator has no other way."""

from __future__ import annotations

from typing import Any

from mesh.device import Mesh


def accurate(mesh: Mesh) -> Any:
    """The compute kernel configuration for matrix products (the library's default drops mantissa bits)."""
    tt = mesh.tt
    return tt.WormholeComputeKernelConfig(
        math_fidelity=tt.MathFidelity.HiFi4, math_approx_mode=False, fp32_dest_acc_en=True, packer_l1_acc=True
    )
