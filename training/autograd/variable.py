"""Values on the mesh that operations take and return, the parameters of a model, and the sums of their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from mesh.collectives import add, reduce_partial_sums
from mesh.device import Mesh
from mesh.placement import REPLICATED, WHOLE, Placements

Tensor: TypeAlias = Any
"""A tensor of the mesh's device module, `ttnn` or the emulator; the two share no base class."""


class Gradient:
    """The sum of one variable's gradient during one backward pass.

    Attributes:
        value: the sum so far; None before the first summand.
        placements: how that sum lies on the mesh; devices may hold parts that are still to be added up.
        target: placements of the complete gradient.
        uses: number of recorded operations that have not added their summand yet.
        parameter: the parameter whose gradient it is, None for another variable.
    """

    __slots__ = ("parameter", "placements", "target", "uses", "value")

    def __init__(self, target: Placements, parameter: Parameter | None = None) -> None:
        self.value: Any = None
        self.placements = target
        self.target = target
        self.uses = 0
        self.parameter = parameter

    def add(self, mesh: Mesh, summand: Tensor, placements: Placements) -> None:
        """Add a summand that lies on the mesh as `placements` says."""
        if self.value is None:
            self.value, self.placements = summand, placements
            return
        if placements != self.placements:
            # One is partial and the other is not. While all are alike, they are added up over devices only once.
            summand = reduce_partial_sums(mesh, summand, placements, self.target)
            self.complete(mesh)
        self.value = add(mesh, self.value, summand)

    def complete(self, mesh: Mesh) -> Tensor:
        """Return the sum, laid out as the target says."""
        if self.placements != self.target:
            self.value = reduce_partial_sums(mesh, self.value, self.placements, self.target)
            self.placements = self.target
        return self.value


class Variable:
    """A value on the mesh that operations take and return.

    Attributes:
        value: the device tensor.
        placements: placements of the value over the mesh's axes.
        gradient: the sum of its gradient; None if it needs none, and for a parameter, whose gradients the tape keeps.
    """

    __slots__ = ("gradient", "placements", "value")

    def __init__(self, value: Tensor, placements: Placements, gradient: Gradient | None = None) -> None:
        self.value = value
        self.placements = placements
        self.gradient = gradient

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient is needed."""
        return self.gradient is not None

    @property
    def used_placements(self) -> Placements:
        """Placements of the value that operations compute with."""
        return self.placements


@dataclass(frozen=True)
class Split:
    """The way in which tensor-parallel devices share a parameter.

    Attributes:
        dim: dimension of the logical shape that is cut into equal pieces, one for each device.
        parts: sizes of blocks that lie next to each other along `dim` and are cut separately, such as queries, keys
            and values; empty for a single block.
        padded: whether `dim` is padded with zeros to whole tiles for each device.
    """

    dim: int
    parts: tuple[int, ...] = ()
    padded: bool = False


class Parameter(Variable):
    """A trained value: float32 in the optimizer, in the mesh's dtype on the mesh.

    Attributes:
        name: name in the layout, for example `blocks.0.attention.qkv.weight`.
        shape: logical shape, as in the layout and in checkpoints.
        mesh_shape: shape on a mesh of one device, with the same elements in the same order.
        split: how tensor-parallel devices share it; None if each device has the whole.
        initial_deviation: standard deviation of the normal distribution of its initial values; 0 for a constant.
        initial_mean: mean of that distribution, or the constant.
        export_name: name of the tensor in `model.safetensors`.
        partial_gradient: placements of the gradient of a copy of another range's parameter. It leaves the pass as the
            devices hold it, so that the other range adds it up with its own summand; None for a parameter.
        fetch: callback that puts newer weights on the mesh, set while they are on their way. It is called before the
            next use of the value, waits for the weights, and unsets itself.
    """

    __slots__ = (
        "_value",
        "export_name",
        "fetch",
        "initial_deviation",
        "initial_mean",
        "mesh_shape",
        "name",
        "partial_gradient",
        "shape",
        "split",
    )

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        export_name: str,
        initial_deviation: float = 0.0,
        initial_mean: float = 0.0,
        split: Split | None = None,
    ) -> None:
        self.fetch: Callable[[], None] | None = None
        super().__init__(None, WHOLE)
        self.name = name
        self.shape = shape
        # Layer-norm gradients must be [1, E] (the library checks), and matrices are 4-D as activations are.
        self.mesh_shape = (1, *shape) if len(shape) == 1 else (1, 1, *shape)
        self.split = split
        self.initial_deviation = initial_deviation
        self.initial_mean = initial_mean
        self.export_name = export_name
        self.partial_gradient: Placements | None = None

    @property
    def value(self) -> Tensor:
        """The device tensor with the newest weights; reading it waits for them if they are on their way."""
        if self.fetch is not None:
            self.fetch()
        return self._value

    @value.setter
    def value(self, value: Tensor) -> None:
        self._value: Tensor = value
        self.fetch = None

    @property
    def requires_grad(self) -> bool:
        """True: every parameter is trained."""
        return True

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix or an embedding table, and not a bias or a gain."""
        return len(self.shape) > 1

    @property
    def used_placements(self) -> Placements:
        """Placements after a parameter that is sharded over the data axis is gathered."""
        return Placements(REPLICATED, self.placements.tensor)

    @property
    def gradient_placements(self) -> Placements:
        """Placements of the gradient that leaves a pass: those of the value, unless it is a copy."""
        return self.partial_gradient or self.placements
