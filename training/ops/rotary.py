"""Rotary position embedding, Hugging Face's convention: element i of a head turns together with i + half the width."""

from __future__ import annotations

from dataclasses import dataclass

from mesh.device import Mesh
from training.autograd import Tensor, Variable
from training.ops.heads import TILE
from training.ops.precision import accurate


@dataclass(frozen=True)
class Rotation:
    """By how much each position turns, as constants [1, 1, tokens, head width]: the two halves of a row are equal.

    Attributes:
        cosine: of the angles.
        sine: of the angles.
        minus_sine: to turn back.
    """

    cosine: Variable
    sine: Variable
    minus_sine: Variable


def rotate(mesh: Mesh, x: Tensor, rotation: Rotation) -> Tensor:
    """Turn x [sequences, heads, tokens, head width], token t by the angles of row t.

    Raises:
        ValueError: tokens or widths differ; the device library would not say so.
    """
    return _turn(mesh, x, rotation.cosine.value, rotation.sine.value)


def rotate_back(mesh: Mesh, x: Tensor, rotation: Rotation) -> Tensor:
    """The reverse of `rotate`, which is also what its gradient takes."""
    return _turn(mesh, x, rotation.cosine.value, rotation.minus_sine.value)


def _turn(mesh: Mesh, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    tt = mesh.tt
    shape = list(x.shape)
    if list(cosine.shape) != [1, 1, *shape[2:]] or list(sine.shape) != [1, 1, *shape[2:]]:
        raise ValueError(f"rotation of shape {list(cosine.shape)} for heads of shape {shape}")
    width = shape[3]
    if shape[2] % TILE == 0 and (width == TILE or width % (2 * TILE) == 0):
        return tt.experimental.rotary_embedding(x, cosine, sine, compute_kernel_config=accurate(mesh))
    # The kernel pads other sizes up to whole tiles, in its result as well.
    half = width // 2
    first = tt.slice(x, [0, 0, 0, 0], [*shape[:3], half])
    second = tt.slice(x, [0, 0, 0, half], shape)
    turned = tt.concat([tt.neg(second), first], dim=3)
    return tt.add(tt.multiply(x, cosine), tt.multiply(turned, sine))
