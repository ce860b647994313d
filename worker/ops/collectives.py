"""Sums over the mesh."""

from __future__ import annotations

from mesh.device import Mesh
from worker.autograd import Gradient, Placement, Tensor


def sum_over_data(mesh: Mesh, gradient: Gradient) -> Tensor:
    """A parameter's complete gradient, the same on every device: a partial one is summed over the data axis."""
    if gradient.placement is not Placement.PARTIAL:
        return gradient.value
    return mesh.tt.all_reduce(gradient.value, cluster_axis=mesh.axes.data)
