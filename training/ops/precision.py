"""How exactly the device computes products and sums: full mantissas, float32 sums. The emulator has no other way."""

from __future__ import annotations

from typing import Any

from mesh.device import Mesh


def accurate(mesh: Mesh) -> Any:
    """The compute kernel configuration for whatever adds many terms (by default the library sums in 16 bits)."""
    tt = mesh.tt
    return tt.WormholeComputeKernelConfig(
        math_fidelity=tt.MathFidelity.HiFi4, math_approx_mode=False, fp32_dest_acc_en=True, packer_l1_acc=True
    )
