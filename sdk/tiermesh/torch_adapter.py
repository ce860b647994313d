"""Parameters of PyTorch: on the CPU they are views of the memory that weights arrive in, and hooks take gradients.

On another device weights and gradients are copied. CUDA reads and writes the shared memory itself, as it is pinned, and
the copies of gradients run beside the backward pass.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from tiermesh.errors import error_of
from tiermesh.gradient import Gradient
from tiermesh.parameters import Adapter, Float32Array, find_cpu, make_entries


class TorchAdapter(Adapter):
    """An adapter of a module, or of a mapping from names to parameters.

    Args:
        parameters: the module, whose buffers are watched, too; or the mapping.
        watches_buffers: whether a buffer that changes is refused.

    Raises:
        Refused: a parameter can't be trained so.
    """

    def __init__(self, parameters: Any, *, watches_buffers: bool) -> None:
        is_module = isinstance(parameters, torch.nn.Module)
        self._module = parameters if is_module and watches_buffers else None
        named = dict(parameters.named_parameters() if is_module else parameters)
        for name, value in named.items():
            _check_parameter(name, value)
        entries = make_entries((name, tuple(value.shape)) for name, value in named.items())
        self._names = list(named)
        self._parameters: list[Any] = list(named.values())
        devices = {value.device for value in self._parameters}
        if len(devices) > 1:
            shown = ", ".join(sorted(map(str, devices)))
            raise error_of("parameters", f"on {shown}", "all on one device", "move the model to one")
        self._device = devices.pop()
        self._weights: list[Any] = []  # views of the memory
        self._gradients: list[Any] = []
        self._pinned: list[Float32Array] = []
        self._copies: deque[tuple[int, Any]] = deque()  # gradients on their way from the device
        self._is_bound = False  # whether the parameters are views of the memory
        self._has_weights = False  # whether the parameters have weights of the job
        self._seen = self._look()
        self._buffers = self._look_at_buffers()
        facts = {
            "adapter": "torch",
            "torch": torch.__version__,
            "device": _describe(self._device),
            "threads": str(torch.get_num_threads()),
            "deterministic": str(torch.are_deterministic_algorithms_enabled()).lower(),
            "matmul_precision": torch.get_float32_matmul_precision(),
        }
        if self._module is not None and self._buffers:
            facts["buffers"] = _hash(value for _, value in self._module.named_buffers())
        super().__init__(entries, facts)
        self._hooks = [
            value.register_post_accumulate_grad_hook(self._hook(index))
            for index, value in enumerate(self._parameters)
        ]

    # ---- weights ----

    def write_initial(self, out: Float32Array) -> None:
        """Write the parameters' values to the flat array.

        Raises:
            Refused: they have the job's weights by now.
        """
        if self._has_weights:
            raise error_of(
                "parameters",
                "those that the job has trained",
                "initial values, as the job begins again",
                "join with a new model",
            )
        for entry, value in zip(self.entries, self._parameters, strict=True):
            out[entry.start : entry.stop] = value.detach().cpu().numpy().ravel()

    def use(self, weights: Float32Array, gradient: Float32Array) -> None:
        """Take the flat arrays that are shared with the daemon; the parameters keep their values until weights come."""
        self._unpin()
        if self._device.type == "cuda":
            self._pin(weights)
            self._pin(gradient)
        flat = torch.from_numpy(weights), torch.from_numpy(gradient)
        self._weights, self._gradients = (
            [memory[each.start : each.stop].view(each.shape) for each in self.entries] for memory in flat
        )
        self._is_bound = False

    def _pin(self, memory: Float32Array) -> None:
        """Let CUDA read and write memory without a copy in between."""
        code = int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))
        if code:
            raise error_of(
                "device", f"CUDA error {code}", "shared memory that can be pinned", "raise `ulimit -l`"
            )
        self._pinned.append(memory)

    def _unpin(self) -> None:
        for memory in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data)
        self._pinned.clear()

    def load(self, first: int, stop: int) -> None:
        """Give the model the weights of these entries."""
        if self._device.type != "cpu":
            with torch.no_grad():
                for value, weights in zip(
                    self._parameters[first:stop], self._weights[first:stop], strict=True
                ):
                    value.copy_(weights, non_blocking=True)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # the daemon may write the next weights
        elif not self._is_bound:
            for value, weights in zip(self._parameters, self._weights, strict=True):
                value.data = weights
            self._is_bound = True
        self._has_weights = True
        self._seen = self._look()

    def _look(self) -> list[tuple[int, int]]:
        """Return what changes with each parameter's values: the number of changes in place, and where they are."""
        return [(value._version, value.data_ptr()) for value in self._parameters]

    # ---- gradients ----

    def begin(self, gradient: Gradient | None) -> None:
        """Begin a micro-batch or a held-out batch."""
        super().begin(gradient)
        self._copies.clear()

    def _hook(self, index: int) -> Callable[[Any], None]:
        """Return what takes a parameter's gradient, from within the backward pass, once it is accumulated."""

        def take(parameter: Any) -> None:
            value, parameter.grad = parameter.grad, None
            gradient = self._gradient
            if gradient is None:
                raise error_of(
                    "backward",
                    f"a gradient of {self._names[index]}",
                    "gradients for micro-batches to train on alone, before `done`",
                    "wrap what only evaluates in torch.no_grad()",
                )
            if gradient.is_abandoned:
                return
            if value.layout != torch.strided:
                field = f"gradients[{self._names[index]!r}].layout"
                raise error_of(field, value.layout, "torch.strided", "make the layer without sparse=True")
            gradient.place(index, value.dtype, value.shape)
            if self._device.type == "cuda":
                self._gradients[index].copy_(value, non_blocking=True)
                self._copies.append((index, torch.cuda.current_stream(self._device).record_event()))
                self._end_copies(gradient, wait=False)
            else:
                self._gradients[index].copy_(value)
                gradient.complete(index)

        return take

    def _end_copies(self, gradient: Gradient, *, wait: bool) -> None:
        while self._copies and (wait or self._copies[0][1].query()):
            index, copied = self._copies.popleft()
            copied.synchronize()
            gradient.complete(index)

    def finish(self, gradients: Mapping[str, Any] | None) -> None:
        """Wait for the copies of gradients."""
        gradient, self._gradient = self._gradient, None
        if gradients is not None:
            raise error_of("gradients", "a mapping", "None, as backward() gives them", "leave it out")
        if gradient is not None:
            self._end_copies(gradient, wait=True)

    def check(self) -> None:
        """Check that the caller's code has changed neither parameters nor buffers (Refused)."""
        for name, seen, now in zip(self._names, self._seen, self._look(), strict=True):
            if seen != now:
                raise error_of(
                    f"parameters[{name!r}]",
                    "changed by the loop",
                    "weights that the cluster's optimizer alone changes",
                    "remove optimizer.step() and other changes in place",
                )
        if self._buffers != self._look_at_buffers():
            was = dict(self._buffers)
            name = next(
                (each for each, seen in self._look_at_buffers() if was.get(each) != seen), "one removed"
            )
            raise error_of(
                f"buffers[{name!r}]",
                "changed in training",
                "buffers that stay, as workers do not exchange them",
                'use a layer without running statistics, or exact: false and buffers="local"',
            )

    def _look_at_buffers(self) -> list[tuple[str, tuple[int, int]]]:
        if self._module is None:
            return []
        return [(name, (value._version, value.data_ptr())) for name, value in self._module.named_buffers()]

    def end(self) -> None:
        """Give the parameters memory of their own, with the newest weights that have arrived."""
        for hook in self._hooks:
            hook.remove()
        self._unpin()
        if self._is_bound:
            for value in self._parameters:
                value.data = value.data.clone()


def is_torch(parameters: object) -> bool:
    """Return whether parameters are PyTorch's: a module, or a mapping with a tensor."""
    if isinstance(parameters, torch.nn.Module):
        return True
    return isinstance(parameters, Mapping) and any(
        isinstance(value, torch.Tensor) for value in parameters.values()
    )


def _check_parameter(name: str, value: object) -> None:
    field = f"parameters[{name!r}]"
    if not isinstance(value, torch.Tensor):
        raise error_of(field, type(value).__name__, "a torch Parameter, as others are", "convert it")
    if value.dtype != torch.float32:
        fix = "convert it with .float(), and use autocast for passes in a smaller type"
        raise error_of(f"{field}.dtype", value.dtype, "torch.float32", fix)
    if not (value.requires_grad and value.is_leaf):
        fix = "leave it out of the mapping: it is part of your code"
        raise error_of(field, "a tensor that is not trained", "one with requires_grad", fix)
    if not value.is_contiguous():
        raise error_of(field, f"strides of {value.stride()}", "a contiguous tensor", "call contiguous()")


def _describe(device: Any) -> str:
    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)}"
    if device.type == "cpu":
        return f"cpu {find_cpu()} {torch.backends.cpu.get_cpu_capability()}"
    return str(device.type)


def _hash(tensors: Iterable[Any]) -> str:
    """Return a SHA-256 of tensors' values."""
    found = hashlib.sha256()
    for each in tensors:
        found.update(each.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
