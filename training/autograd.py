"""Tape autograd over device tensors.

An operation (training/ops) computes its value at once and records on the tape how a gradient of that value becomes
gradients of its inputs. `Tape.backward` replays the records from the last to the first, dropping each as it goes, so
that the values it kept are freed while the pass runs. The tape, not the device library, knows how a value lies on the
mesh (mesh/placement.py), and adds up the parts of a gradient that devices hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from mesh.collectives import add, reduce_partial_sums
from mesh.device import Mesh
from mesh.placement import PARTIAL, REPLICATED, WHOLE, Placement, Placements
from mesh.transfer import upload
from training.inputs import Array, KeptInputs, Prepare, as_it_is

Tensor: TypeAlias = Any
"""A tensor of the mesh's device module, be it `ttnn` or what stands in for it; the two share no base class."""

Backward: TypeAlias = Callable[[Any], tuple[Tensor | None, ...]]
"""From the gradient of an operation's value to those of its inputs, in their order; None where none is needed.
Of a loss the gradient is a plain number."""


class Gradient:
    """Where the gradient of one variable is added up during one backward pass.

    Attributes:
        value: the sum so far; None before the first summand.
        placements: of that sum; devices may hold parts that are yet to be added up.
        target: the placements of the complete gradient.
        uses: recorded operations that have yet to add their summand.
        parameter: whose gradient it is, if it is a parameter's.
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
            # One is partial where the other isn't: as long as all are alike, they are added up over devices once.
            summand = reduce_partial_sums(mesh, summand, placements, self.target)
            self.complete(mesh)
        self.value = add(mesh, self.value, summand)

    def complete(self, mesh: Mesh) -> Tensor:
        """The value, laid out as the target says."""
        if self.placements != self.target:
            self.value = reduce_partial_sums(mesh, self.value, self.placements, self.target)
            self.placements = self.target
        return self.value


class Variable:
    """A value on the mesh that operations take and give.

    Attributes:
        value: the device tensor.
        placements: of the value over the mesh's axes.
        gradient: where its gradient is added up; None if none is wanted, and for a parameter (the tape has those).
    """

    __slots__ = ("gradient", "placements", "value")

    def __init__(self, value: Tensor, placements: Placements, gradient: Gradient | None = None) -> None:
        self.value = value
        self.placements = placements
        self.gradient = gradient

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient is wanted for it."""
        return self.gradient is not None

    @property
    def used_placements(self) -> Placements:
        """Of the value that operations compute with."""
        return self.placements


@dataclass(frozen=True)
class Split:
    """How tensor-parallel devices share a parameter.

    Attributes:
        dim: of the logical shape, cut into equal pieces, one for each device.
        parts: sizes of what lies side by side along `dim` and is shared out each for itself, such as queries, keys and
            values; empty if it is one thing.
        padded: whether `dim` gets zeros at its end, up to whole tiles for each device.
    """

    dim: int
    parts: tuple[int, ...] = ()
    padded: bool = False


class Parameter(Variable):
    """A trained value, float32 with the optimizer, in the mesh's dtype here.

    Attributes:
        name: in the layout, e.g. `blocks.0.attention.qkv.weight`.
        shape: logical shape, as in the layout and in checkpoints.
        mesh_shape: the same elements in the same order, as they lie on a mesh of one device.
        split: how tensor-parallel devices share it; None if each has the whole.
        initial_deviation: of the normal distribution that it starts from; 0 for a constant.
        initial_mean: of that distribution, or the constant.
        export_name: of the tensor in `model.safetensors`.
        fetch: set while newer weights are on their way to the mesh and this parameter's are not there yet; called
            before the next use of the value, it waits for them, puts them there, and unsets itself.
    """

    __slots__ = (
        "_value",
        "export_name",
        "fetch",
        "initial_deviation",
        "initial_mean",
        "mesh_shape",
        "name",
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

    @property
    def value(self) -> Tensor:
        """The device tensor, with the newest weights in it. Whatever computes with it gets it here."""
        if self.fetch is not None:
            self.fetch()
        return self._value

    @value.setter
    def value(self, value: Tensor) -> None:
        self._value: Tensor = value
        self.fetch = None

    @property
    def requires_grad(self) -> bool:
        """Always: that is what a parameter is."""
        return True

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix (embedding tables among them) and not a bias or a gain."""
        return len(self.shape) > 1

    @property
    def used_placements(self) -> Placements:
        """A parameter that is sharded over the data axis is gathered before it is used."""
        return Placements(REPLICATED, self.placements.tensor)


_Record: TypeAlias = tuple[Gradient, tuple[tuple[Gradient, Placements] | None, ...], Backward]


class Tape:
    """The record of one forward pass.

    Args:
        mesh: whose device module the operations call.
        recording: off for evaluation and generation: nothing is kept for a backward pass.
        dropout_seed: seed of a dropout site, by the site's name; None switches dropout off.
        inputs: keeps the inputs of the pass for the next one; None uploads them for this pass alone.
    """

    def __init__(
        self,
        mesh: Mesh,
        *,
        recording: bool = True,
        dropout_seed: Callable[[str], int] | None = None,
        inputs: KeptInputs | None = None,
    ) -> None:
        self.mesh = mesh
        self._inputs = inputs
        self.dropout_seed = dropout_seed
        self._recording = recording
        self._records: list[_Record] = []
        self._parameters: dict[Parameter, Gradient] = {}
        self._noted: dict[Parameter, None] | None = None  # used in what is being passed through unrecorded

    def __len__(self) -> int:
        """Operations recorded and not yet replayed."""
        return len(self._records)

    def input(
        self,
        source: Array,
        *,
        dtype: Any,
        layout: Any,
        placements: Placements,
        prepare: Prepare = as_it_is,
    ) -> Variable:
        """What operations take of a batch.

        Args:
            source: one of the batch's arrays.
            dtype: on the mesh.
            layout: on the mesh.
            placements: over the mesh's axes.
            prepare: from `source`, and nothing else, to the array that is uploaded.
        """
        if self._inputs is not None:
            value = self._inputs.tensor(source, prepare, dtype, layout, placements)
        else:
            value = upload(self.mesh, prepare(source), dtype=dtype, layout=layout, placements=placements)
        return Variable(value, placements)

    def record(
        self,
        value: Tensor,
        inputs: tuple[Variable, ...],
        backward: Backward,
        placements: Placements | None = None,
    ) -> Variable:
        """The variable that an operation gives; keeps `backward` if a gradient of any input is wanted.

        How a gradient lies over an axis follows: where an input is sharded, its gradient is sharded alike. Where it is
        replicated but the result sharded, each device knows only its own share of the gradient, which the tape adds
        up over devices when the last summand is there. Else the gradient is replicated.

        Args:
            value: what the operation computed.
            inputs: the variables it took; `backward` gives one gradient (or None) for each.
            backward: see `Backward`. It must hold on to no more values than it needs.
            placements: of the value; None if it lies as the inputs do, element for element.

        Raises:
            ValueError: the value is said to be partial, or lies as the inputs do, which lie in different ways.
        """
        if placements is None:
            placements = elementwise(inputs)
        elif PARTIAL in placements:
            raise ValueError("an operation gave a partial sum; it must add it up itself")
        if not any(variable.requires_grad for variable in inputs):
            return Variable(value, placements)
        if not self._recording:
            if self._noted is not None:
                self._noted.update((one, None) for one in inputs if isinstance(one, Parameter))
            return Variable(value, placements)
        return self._record(value, inputs, backward, placements)

    def recompute(self, function: Callable[..., Variable], *inputs: Variable) -> Variable:
        """`function(*inputs)`, of whose values nothing is kept: the backward pass computes them again.

        Args:
            function: operations on this tape, from `inputs` and parameters to one variable. It is called again in the
                backward pass and must do the same then (dropout does: its seeds follow from names).
            inputs: the variables it takes.
        """
        if not self._recording:
            return function(*inputs)
        self._recording, self._noted = False, {}
        try:
            result = function(*inputs)
            parameters = tuple(self._noted)
        finally:
            self._recording, self._noted = True, None
        gradients = tuple(variable.gradient for variable in inputs)
        values = tuple((variable.value, variable.placements) for variable in inputs)

        def again(gradient: Tensor) -> tuple[Tensor | None, ...]:
            before = len(self._records)
            variables = (
                Variable(value, placements, own)
                for (value, placements), own in zip(values, gradients, strict=True)
            )
            repeated = function(*variables)
            if len(self._records) == before or repeated.gradient is not self._records[-1][0]:
                raise ValueError("what is recomputed must end with the operation that gives its result")
            repeated.gradient.add(self.mesh, gradient, repeated.placements)
            return (None,) * (len(inputs) + len(parameters))

        return self._record(result.value, (*inputs, *parameters), again, result.placements)

    def backward(self, loss: Variable, seed: float, on_final: Callable[[Parameter, Tensor], None]) -> None:
        """Replay the tape backwards from `loss`, emptying it.

        Args:
            loss: what a loss operation gave; its gradient is the number `seed`, the weight of each of its elements.
            seed: e.g. 1 / tokens for the mean over them.
            on_final: called with each parameter and its gradient, which lies as the parameter does, as soon as it is
                complete, last used first. The gradient is dropped when the call returns.

        Raises:
            ValueError: `loss` is not what was recorded last, or a recorded value does not enter it.
        """
        if not self._records or loss.gradient is not self._records[-1][0]:
            raise ValueError("backward wants the loss that was recorded last, on the tape that recorded it")
        loss.gradient.value = seed
        while self._records:
            self._replay_last(on_final)

    def _record(
        self, value: Tensor, inputs: tuple[Variable, ...], backward: Backward, placements: Placements
    ) -> Variable:
        summands = tuple(self._summand(variable, placements) for variable in inputs)
        for summand in summands:
            if summand is not None:
                summand[0].uses += 1
        result = Gradient(placements)
        self._records.append((result, summands, backward))
        return Variable(value, placements, result)

    def _summand(self, variable: Variable, result: Placements) -> tuple[Gradient, Placements] | None:
        """Where the gradient of an input is added up, and how a summand of it lies."""
        gradient = variable.gradient
        if isinstance(variable, Parameter):
            # A parameter outlives tapes, so its gradient is the tape's.
            gradient = self._parameters.setdefault(variable, Gradient(variable.placements, variable))
        if gradient is None:
            return None
        used = variable.used_placements
        return gradient, Placements(_share(used.data, result.data), _share(used.tensor, result.tensor))

    def _replay_last(self, on_final: Callable[[Parameter, Tensor], None]) -> None:
        """Replay one record; its values die with this frame."""
        result, summands, backward = self._records.pop()
        if result.value is None:
            raise ValueError("a recorded value does not enter the loss")
        depth = len(self._records)
        computed = backward(result.complete(self.mesh))
        recomputed = len(self._records) > depth
        # Last input first, so that a weight's bias, behind it in the layout, is final before it.
        for summand, value in reversed(list(zip(summands, computed, strict=True))):
            if summand is None:
                continue
            gradient, placements = summand
            gradient.uses -= 1
            if recomputed:
                continue  # its summands come from the records that were just made
            if value is None:
                raise ValueError("an operation left out a gradient that is wanted")
            gradient.add(self.mesh, value, placements)
            if gradient.parameter is not None and gradient.uses == 0:
                on_final(gradient.parameter, gradient.complete(self.mesh))
                del self._parameters[gradient.parameter]
        result.value = None


def elementwise(inputs: tuple[Variable, ...]) -> Placements:
    """How the result of an operation lies that works element by element on inputs that broadcast over dimensions.

    Raises:
        ValueError: two inputs are sharded in different ways.
    """
    data, tensor = REPLICATED, REPLICATED
    for variable in inputs:
        used = variable.used_placements
        data = _common(data, used.data, inputs)
        tensor = _common(tensor, used.tensor, inputs)
    return Placements(data, tensor)


def _common(one: Placement, other: Placement, inputs: tuple[Variable, ...]) -> Placement:
    if other == PARTIAL or not (one == other or REPLICATED in (one, other)):
        shown = " and ".join(str(variable.used_placements) for variable in inputs)
        raise ValueError(f"an operation was given inputs that don't lie alike on the mesh: {shown}")
    return other if one == REPLICATED else one


def _share(used: Placement, result: Placement) -> Placement:
    """How the gradient of an input that lies as `used` comes out of an operation whose result lies as `result`."""
    if used == REPLICATED and result.dim is not None:
        return PARTIAL
    return used
