"""Tape autograd over device tensors.

An operation (worker/ops) computes its value at once and records on the tape how a gradient of that value becomes
gradients of its inputs. `Tape.backward` replays the records from the last to the first, dropping each as it goes, so
that the values it kept are freed while the pass runs. The tape, not the device library, knows how a value lies on the
mesh: the library labels partial sums wrongly and never refuses placements that don't go together.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeAlias

from mesh.device import Mesh

Tensor: TypeAlias = Any
"""A tensor of the mesh's device module, be it `ttnn` or the emulator; the two share no base class."""

Backward: TypeAlias = Callable[[Any], tuple[Tensor | None, ...]]
"""From the gradient of an operation's value to those of its inputs, in their order; None where none is needed.
Of a loss the gradient is a plain number."""


class Placement(Enum):
    """How a value lies over the mesh's data axis."""

    REPLICATED = "replicated"
    """The same on every device."""
    SHARDED = "sharded"
    """Each device has its own rows of the batch."""
    PARTIAL = "partial"
    """Each device has a summand; the value is their sum."""


class Gradient:
    """Where the gradient of one variable is added up during one backward pass.

    Attributes:
        value: the sum so far; None before the first summand.
        placement: of the value.
        uses: recorded operations that have yet to add their summand.
        parameter: whose gradient it is, if it is a parameter's.
    """

    __slots__ = ("parameter", "placement", "uses", "value")

    def __init__(self, placement: Placement, parameter: Parameter | None = None) -> None:
        self.value: Any = None
        self.placement = placement
        self.uses = 0
        self.parameter = parameter

    def add(self, mesh: Mesh, summand: Tensor, placement: Placement) -> None:
        """Add a summand that comes from an operation whose value has that placement.

        Of a parameter used beside sharded values, each device has only its own rows' share of the gradient.

        Raises:
            ValueError: the summand does not lie on the mesh as the variable does, or as the summands before it.
        """
        if self.parameter is not None and placement is Placement.SHARDED:
            placement = Placement.PARTIAL
        if placement is not self.placement:
            if self.parameter is None or self.value is not None:
                raise ValueError(f"a {self.placement.value} gradient was given a {placement.value} summand")
            self.placement = placement
        self.value = summand if self.value is None else mesh.tt.add(self.value, summand)


class Variable:
    """A value on the mesh that operations take and give.

    Attributes:
        value: the device tensor.
        placement: of the value over the data axis.
        gradient: where its gradient is added up; None if none is wanted, and for a parameter (the tape has those).
    """

    __slots__ = ("gradient", "placement", "value")

    def __init__(self, value: Tensor, placement: Placement, gradient: Gradient | None = None) -> None:
        self.value = value
        self.placement = placement
        self.gradient = gradient

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient is wanted for it."""
        return self.gradient is not None


class Parameter(Variable):
    """A trained value: the same on every device, float32 with the optimizer, in the mesh's dtype here.

    Attributes:
        name: in the layout, e.g. `blocks.0.attention.qkv.weight`.
        shape: logical shape, as in the layout and in checkpoints.
        mesh_shape: shape on the device: the same elements in the same order.
        initial_deviation: of the normal distribution that it starts from; 0 for a constant.
        initial_mean: of that distribution, or the constant.
        export_name: of the tensor in `model.safetensors`.
    """

    __slots__ = ("export_name", "initial_deviation", "initial_mean", "mesh_shape", "name", "shape")

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        export_name: str,
        initial_deviation: float = 0.0,
        initial_mean: float = 0.0,
    ) -> None:
        super().__init__(None, Placement.REPLICATED)
        self.name = name
        self.shape = shape
        # Layer-norm gradients must be [1, E] (the library checks), and matrices are 4-D as activations are.
        self.mesh_shape = (1, *shape) if len(shape) == 1 else (1, 1, *shape)
        self.initial_deviation = initial_deviation
        self.initial_mean = initial_mean
        self.export_name = export_name

    @property
    def requires_grad(self) -> bool:
        """Always: that is what a parameter is."""
        return True

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix (embedding tables among them) and not a bias or a gain."""
        return len(self.shape) > 1


class Tape:
    """The record of one forward pass.

    Args:
        mesh: whose device module the operations call.
        recording: off for evaluation and generation: nothing is kept for a backward pass.
        dropout_seed: seed of a dropout site, by the site's name; None switches dropout off.
    """

    def __init__(
        self, mesh: Mesh, *, recording: bool = True, dropout_seed: Callable[[str], int] | None = None
    ) -> None:
        self.mesh = mesh
        self.dropout_seed = dropout_seed
        self._recording = recording
        self._records: list[tuple[Gradient, tuple[Gradient | None, ...], Backward]] = []
        self._parameters: dict[Parameter, Gradient] = {}

    def __len__(self) -> int:
        """Operations recorded and not yet replayed."""
        return len(self._records)

    def record(self, value: Tensor, inputs: tuple[Variable, ...], backward: Backward) -> Variable:
        """The variable that an operation gives; keeps `backward` if a gradient of any input is wanted.

        Args:
            value: what the operation computed.
            inputs: the variables it took; `backward` gives one gradient (or None) for each.
            backward: see `Backward`. It must hold on to no more values than it needs.

        Raises:
            ValueError: an input is a partial sum: it must be reduced over the mesh first.
        """
        placement = Placement.REPLICATED
        wanted = False
        for variable in inputs:
            if variable.placement is Placement.PARTIAL:
                raise ValueError("an operation was given a partial sum; reduce it over the data axis first")
            if variable.placement is Placement.SHARDED:
                placement = Placement.SHARDED
            wanted = wanted or variable.requires_grad
        if not (wanted and self._recording):
            return Variable(value, placement)
        gradients = tuple(self._gradient(variable) for variable in inputs)
        for gradient in gradients:
            if gradient is not None:
                gradient.uses += 1
        result = Gradient(placement)
        self._records.append((result, gradients, backward))
        return Variable(value, placement, result)

    def backward(self, loss: Variable, seed: float, on_final: Callable[[Parameter, Gradient], None]) -> None:
        """Replay the tape backwards from `loss`, emptying it.

        Args:
            loss: what a loss operation gave; its gradient is the number `seed`, the weight of each of its elements.
            seed: e.g. 1 / tokens for the mean over them.
            on_final: called with each parameter as soon as its gradient is complete, last used first; partial where
                the parameter met sharded values. The gradient is dropped when the call returns.

        Raises:
            ValueError: `loss` is not what was recorded last, or a recorded value does not enter it.
        """
        if not self._records or loss.gradient is not self._records[-1][0]:
            raise ValueError("backward wants the loss that was recorded last, on the tape that recorded it")
        loss.gradient.value = seed
        while self._records:
            self._replay_last(on_final)

    def _gradient(self, variable: Variable) -> Gradient | None:
        """Where the gradient of an input is added up. A parameter outlives tapes, so its gradient is the tape's."""
        if isinstance(variable, Parameter):
            return self._parameters.setdefault(variable, Gradient(Placement.REPLICATED, variable))
        return variable.gradient

    def _replay_last(self, on_final: Callable[[Parameter, Gradient], None]) -> None:
        """Replay one record; its values die with this frame."""
        result, gradients, backward = self._records.pop()
        if result.value is None:
            raise ValueError("a recorded value does not enter the loss")
        # Last input first, so that a weight's bias, behind it in the layout, is final before it.
        for gradient, summand in reversed(list(zip(gradients, backward(result.value), strict=True))):
            if gradient is None:
                continue
            if summand is None:
                raise ValueError("an operation left out a gradient that is wanted")
            gradient.add(self.mesh, summand, result.placement)
            gradient.uses -= 1
            if gradient.parameter is not None and gradient.uses == 0:
                on_final(gradient.parameter, gradient)
                del self._parameters[gradient.parameter]
        result.value = None
