"""The tape: the record of a forward pass that the backward pass replays.

An operation (training/ops) computes its value at once. It records on the tape how a gradient of that value becomes
gradients of its inputs. `Tape.backward` replays the records from last to first and drops each one, so the values that
it kept are freed while the pass runs. The tape, not the device library, knows how a value lies on the mesh
(mesh/placement.py). It adds up the parts of a gradient that devices hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from mesh.device import Mesh
from mesh.placement import PARTIAL, REPLICATED, Placement, Placements
from mesh.transfer import upload
from training.autograd.variable import Gradient, Parameter, Tensor, Variable
from training.inputs import Array, KeptInputs, Prepare, unchanged

Backward: TypeAlias = Callable[[Any], tuple[Tensor | None, ...]]
"""Returns the gradients of an operation's inputs, in their order, given the gradient of its value.

None stands for an input that needs no gradient. The gradient of a loss is given as a plain number."""

_Record: TypeAlias = tuple[Gradient, tuple[tuple[Gradient, Placements] | None, ...], Backward]


class Tape:
    """The record of one forward pass.

    Args:
        mesh: the mesh whose device module the operations call.
        recording: False for evaluation and generation, which keep nothing for a backward pass.
        dropout_seed: function that returns the seed of a dropout site, given the site's name; None switches dropout
            off.
        inputs: keeps the inputs of the pass on the mesh for the next one; None uploads them for this pass alone.
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
        self._noted: dict[Parameter, None] | None = None  # used by the function that `recompute` runs

    def __len__(self) -> int:
        """Return the number of operations that are recorded and not yet replayed."""
        return len(self._records)

    def input(
        self,
        source: Array,
        *,
        dtype: Any,
        layout: Any,
        placements: Placements,
        prepare: Prepare = unchanged,
    ) -> Variable:
        """Return an input of the pass as a variable without a gradient.

        Args:
            source: one of the batch's arrays.
            dtype: dtype on the mesh.
            layout: tensor layout on the mesh.
            placements: placements over the mesh's axes.
            prepare: function that returns the array to upload, given `source`. The array depends on nothing else.
        """
        if self._inputs is not None:
            value = self._inputs.tensor(source, prepare, dtype, layout, placements)
        else:
            value = upload(self.mesh, prepare(source), dtype=dtype, layout=layout, placements=placements)
        return Variable(value, placements)

    def begin(self, value: Tensor, placements: Placements) -> Variable:
        """Return a value that another tape computed as a variable from which this pass starts.

        After `backward`, the variable's gradient is that of the result that this tape ended with.

        Args:
            value: tensor on the mesh, such as the activation between two blocks.
            placements: placements over the mesh's axes.
        """
        return Variable(value, placements, Gradient(placements) if self._recording else None)

    def add_summand(self, parameter: Parameter, summand: Tensor, placements: Placements) -> None:
        """Add to a parameter's gradient what the pass of another tape computed for a copy of it.

        Called between the forward pass and `backward`, it gives the first summand, as if this tape had recorded the
        use of the copy after all its own operations.

        Args:
            parameter: a parameter that the forward pass used.
            summand: gradient of the copy.
            placements: placements of the summand; see `Parameter.gradient_placements`.
        """
        self._parameters[parameter].add(self.mesh, summand, placements)

    def record(
        self,
        value: Tensor,
        inputs: tuple[Variable, ...],
        backward: Backward,
        placements: Placements | None = None,
    ) -> Variable:
        """Return the variable that an operation gives; keep `backward` if any input needs a gradient.

        How a gradient lies over an axis follows from the placements. Where an input is sharded, its gradient is
        sharded in the same way. Where an input is replicated and the result is sharded, each device knows only a share
        of the gradient; the tape adds the shares up over the devices after the last summand. Otherwise the gradient is
        replicated.

        Args:
            value: the operation's value.
            inputs: the operation's variables; `backward` returns one gradient (or None) for each.
            backward: see `Backward`. It should keep no values that it does not need.
            placements: placements of the value; None if it lies as the inputs do, element for element.

        Raises:
            ValueError: the value is partial, or `placements` is None and the inputs lie in different ways.
        """
        if placements is None:
            placements = _join_placements(inputs)
        elif PARTIAL in placements:
            raise ValueError(
                "record: the value is a partial sum, expected the operation to add it up over devices"
            )
        if not any(variable.requires_grad for variable in inputs):
            return Variable(value, placements)
        if not self._recording:
            if self._noted is not None:
                self._noted.update((one, None) for one in inputs if isinstance(one, Parameter))
            return Variable(value, placements)
        return self._record(value, inputs, backward, placements)

    def recompute(self, function: Callable[..., Variable], *inputs: Variable) -> Variable:
        """Return `function(*inputs)` and keep none of its values: the backward pass computes them again.

        Args:
            function: operations on this tape, from `inputs` and parameters to one variable. The backward pass calls it
                again, and it must compute the same then. Dropout does, because its seeds follow from names.
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

        def replay(gradient: Tensor) -> tuple[Tensor | None, ...]:
            before = len(self._records)
            variables = (
                Variable(value, placements, own)
                for (value, placements), own in zip(values, gradients, strict=True)
            )
            repeated = function(*variables)
            if len(self._records) == before or repeated.gradient is not self._records[-1][0]:
                raise ValueError(
                    "recompute: the result is not the function's last operation; return what it computes last"
                )
            repeated.gradient.add(self.mesh, gradient, repeated.placements)
            return (None,) * (len(inputs) + len(parameters))

        return self._record(result.value, (*inputs, *parameters), replay, result.placements)

    def backward(
        self, result: Variable, gradient: float | Tensor, on_final: Callable[[Parameter, Tensor], None]
    ) -> None:
        """Replay the tape backwards from `result`, which empties it.

        Args:
            result: value that was recorded last: a loss, or the activation that the pass ends with.
            gradient: gradient of the result. For a loss it is a number, the weight of each of its elements, for example
                1 / tokens for the mean over the tokens. For an activation it is a tensor that lies as the activation.
            on_final: callback, called with each parameter and its gradient as soon as that is complete, last used
                first. The gradient lies as `Parameter.gradient_placements` says, and is dropped when the call returns.

        Raises:
            ValueError: `result` is not what was recorded last, or a recorded value does not enter it.
        """
        if not self._records or result.gradient is not self._records[-1][0]:
            raise ValueError(
                "backward: the result is not this tape's last record; call it on the tape that recorded it"
            )
        result.gradient.value = gradient
        del gradient  # freed with the first record
        while self._records:
            self._replay_last(on_final)

    def clear(self) -> None:
        """Forget what was recorded, of a pass that is given up: records refer to the tape, so they keep each other."""
        self._records.clear()
        self._parameters.clear()

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
        """Return the gradient sum of an input, and how a summand of it lies."""
        gradient = variable.gradient
        if isinstance(variable, Parameter):
            # A parameter outlives the tape, so the tape keeps its gradient.
            gradient = self._parameters.setdefault(variable, Gradient(variable.gradient_placements, variable))
        if gradient is None:
            return None
        used = variable.used_placements
        return gradient, Placements(_share(used.data, result.data), _share(used.tensor, result.tensor))

    def _replay_last(self, on_final: Callable[[Parameter, Tensor], None]) -> None:
        """Replay one record; its values are freed when this frame ends."""
        result, summands, backward = self._records.pop()
        if result.value is None:
            raise ValueError("a recorded value does not enter the result")
        depth = len(self._records)
        computed = backward(result.complete(self.mesh))
        recomputed = len(self._records) > depth
        # Last input first: a bias comes after its weight in the layout, so it must be final before the weight.
        for summand, value in reversed(list(zip(summands, computed, strict=True))):
            if summand is None:
                continue
            gradient, placements = summand
            gradient.uses -= 1
            if recomputed:
                continue  # the records that were just made add its summands
            if value is None:
                raise ValueError("backward: an operation returned no gradient for an input that needs one")
            gradient.add(self.mesh, value, placements)
            if gradient.parameter is not None and gradient.uses == 0:
                on_final(gradient.parameter, gradient.complete(self.mesh))
                del self._parameters[gradient.parameter]
        result.value = None


def _join_placements(inputs: tuple[Variable, ...]) -> Placements:
    """Return the placements of an element-wise operation's result; inputs may broadcast over dimensions.

    Raises:
        ValueError: two inputs are sharded in different ways.
    """
    data, tensor = REPLICATED, REPLICATED
    for variable in inputs:
        used = variable.used_placements
        data = _join(data, used.data, inputs)
        tensor = _join(tensor, used.tensor, inputs)
    return Placements(data, tensor)


def _join(one: Placement, other: Placement, inputs: tuple[Variable, ...]) -> Placement:
    if other == PARTIAL or not (one == other or REPLICATED in (one, other)):
        shown = " and ".join(str(variable.used_placements) for variable in inputs)
        raise ValueError(f"record: the inputs are placed on the mesh as {shown}, expected equal placements")
    return other if one == REPLICATED else one


def _share(used: Placement, result: Placement) -> Placement:
    """Return how the gradient of an input that lies as `used` leaves an operation whose result lies as `result`."""
    if used == REPLICATED and result.dim is not None:
        return PARTIAL
    return used
