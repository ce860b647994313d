"""Rotary position embedding (arXiv:2104.09864), in Hugging Face's convention.

Element i of a head turns together with element i + half the head's width.
"""

from __future__ import annotations

from dataclasses import dataclass

from mesh.device import Mesh
from training.autograd.variable import Tensor, Variable
from training.ops.heads import TILE
from training.ops.precision import accurate


@dataclass(frozen=True)
class Rotation:
    """Angles by which each position turns, as constants [1, 1, tokens, head width]; both halves of a row are equal.

    Attributes:
        cosine: cosines of the angles.
        sine: sines of the angles.
        minus_sine: negated sines, to turn back.
    """

    cosine: Variable
    sine: Variable
    minus_sine: Variable


def rotate(mesh: Mesh, x: Tensor, rotation: Rotation) -> Tensor:
    """Turn x [sequences, heads, tokens, head width], token t by the angles of row t.

    Raises:
        ValueError: tokens or widths differ, which the device library would not report.
    """
    return _turn(mesh, x, rotation.cosine.value, rotation.sine.value)


def rotate_back(mesh: Mesh, x: Tensor, rotation: Rotation) -> Tensor:
    """Turn x by the negated angles. The gradient of `rotate` needs the same."""
    return _turn(mesh, x, rotation.cosine.value, rotation.minus_sine.value)


def _turn(mesh: Mesh, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    tt = mesh.tt
    shape = list(x.shape)
    if list(cosine.shape) != [1, 1, *shape[2:]] or list(sine.shape) != [1, 1, *shape[2:]]:
        raise ValueError(
            f"rotate: angles of shape {list(cosine.shape)} for heads {shape}, expected {[1, 1, *shape[2:]]}"
        )
    width = shape[3]
    if shape[2] % TILE == 0 and (width == TILE or width % (2 * TILE) == 0):
        return tt.experimental.rotary_embedding(x, cosine, sine, compute_kernel_config=accurate(mesh))
    # For other sizes the kernel returns a result that is padded to whole tiles.
    half = width // 2
    first = tt.slice(x, [0, 0, 0, 0], [*shape[:3], half])
    second = tt.slice(x, [0, 0, 0, half], shape)
    turned = tt.concat([tt.neg(second), first], dim=3)
    return tt.add(tt.multiply(x, cosine), tt.multiply(turned, sine))
