"""Runs device modules in lock-step: each call goes to all of them, and their results must agree.

`LockStep(emulator, ttnn)` is used in place of a device module. Each attribute, constant, object and tensor has one
side per module, and each module is called with its own sides. Results must agree in type, shape, dtype, layout,
storage and the shard of each chip, and refusals must be shared. On a difference, `ContractBroken` names the call, its
index, its arguments and the difference. Values are those of the first module, because the mocked ttnn reads zeros.
With a single module, LockStep records its calls.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_CRASHES = ("deallocated", "on the host", "was closed")
"""Words in the emulator's refusal of operands that would crash ttnn. ttnn isn't called then."""


_NUMBERED_BY_HOST = ".get_device_ids"
"""Call whose results may differ, as hosts number their chips in their own way. The first module's are taken."""


class ContractBroken(AssertionError):
    """Difference of the modules in what they accept or return.

    Attributes:
        accepted: whether each module accepted the call; empty if both did.
    """

    def __init__(self, text: str, accepted: tuple[bool, ...] = ()) -> None:
        super().__init__(text)
        self.accepted = accepted


class LockStep:
    """Device modules that are called as one.

    An object that isn't a tensor, such as a mapper, is identified by the text of the call that made it. The call is a
    line the first time, and a number afterwards.

    Attributes:
        lines: one line of text per call so far, without addresses.
    """

    __name__ = "lockstep"

    def __init__(self, *modules: Any) -> None:
        self._modules = modules
        self._attributes: dict[str, Any] = {}
        self._objects: dict[str, str] = {}
        self.lines: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._attributes:
            self._attributes[name] = self._attribute(self._modules, name, name)
        return self._attributes[name]

    def reset(self) -> None:
        """Clear the recorded calls."""
        self.lines.clear()
        self._objects.clear()

    def _attribute(self, sides: Sequence[Any], name: str, path: str) -> Any:
        have = [hasattr(side, name) for side in sides]
        if not any(have):
            raise AttributeError(f"none of the modules has {path}")
        if not all(have):
            raise ContractBroken(f"{path}: {_names(sides, have)} has it, the other module does not")
        found = [getattr(side, name) for side in sides]
        if all(callable(one) and not isinstance(one, enum.EnumMeta) for one in found) and not _is_enum(
            found[0]
        ):
            return _Call(self, found, path)
        return self.merge(found, path)

    def merge(self, sides: Sequence[Any], path: str) -> Any:
        """Combine the results of the modules into one object. Raises ContractBroken if they differ."""
        first = sides[0]
        if _is_tensor(first):
            for other in sides[1:]:
                if not _is_tensor(other):
                    raise ContractBroken(
                        f"{path}: a tensor from one module, {type(other).__name__} from the other"
                    )
            self._compare(path, sides)
            return PairTensor(self, sides, path)
        if isinstance(first, (list, tuple)):
            for other in sides[1:]:
                if type(other) is not type(first) or len(other) != len(first):
                    raise ContractBroken(
                        f"{path}: {_type_of(first)} from one module, {_type_of(other)} from the other"
                    )
            parts = [
                self.merge(part, f"{path}[{index}]") for index, part in enumerate(zip(*sides, strict=True))
            ]
            return type(first)(parts)
        if isinstance(first, np.ndarray):
            for other in sides[1:]:
                if not isinstance(other, np.ndarray) or (other.shape, other.dtype) != (
                    first.shape,
                    first.dtype,
                ):
                    raise ContractBroken(f"{path}: arrays {first.shape} {first.dtype} and {_type_of(other)}")
            return first
        if first is None or isinstance(first, (bool, int, str)):
            if any(other != first for other in sides[1:]):
                raise ContractBroken(f"{path}: {first!r} from one module, {sides[1]!r} from the other")
            return first
        if isinstance(first, float):
            return first
        return PairValue(self, sides, path)

    def call(self, functions: Sequence[Callable[..., Any]], path: str, arguments: Any, options: Any) -> Any:
        """Call each module's function with its own arguments and combine the results."""
        index = len(self.lines)
        text = f"{path}({_format_arguments(arguments, options)})"
        results: list[Any] = []
        refusals: list[Exception | None] = []
        for side, function in enumerate(functions):
            if refusals and refusals[0] is not None and any(word in str(refusals[0]) for word in _CRASHES):
                raise refusals[0]
            try:
                results.append(function(*_select_side(arguments, side), **_select_side(options, side)))
                refusals.append(None)
            except (TypeError, RuntimeError) as error:
                results.append(None)
                refusals.append(error)
        if any(refusals):
            if not all(refusals):
                names = [_summarise(refusal) if refusal else "accepted" for refusal in refusals]
                accepted = tuple(refusal is None for refusal in refusals)
                raise ContractBroken(f"call {index} {text}: {self._by_module(names)}", accepted)
            assert refusals[0] is not None
            raise refusals[0]
        if path.endswith(_NUMBERED_BY_HOST):
            results = results[:1]
        try:
            result = self.merge(results, path)
        except ContractBroken as error:
            raise ContractBroken(f"call {index} {text}: {error}") from None
        if isinstance(result, PairValue) and not _is_enum(result.sides[0]):
            result.shown_as = self._name(text, type(result.sides[0]).__name__)
        else:
            self.lines.append(f"{text} -> {_format(result)}")
        return result

    def _name(self, text: str, kind: str) -> str:
        """Return the numbered name of the object that call `text` makes; record a line if it is new."""
        if text not in self._objects:
            number = sum(name.startswith(f"{kind}#") for name in self._objects.values()) + 1
            self._objects[text] = f"{kind}#{number}"
            self.lines.append(f"{self._objects[text]} = {text}")
        return self._objects[text]

    def _compare(self, path: str, tensors: Sequence[Any]) -> None:
        first, *others = [
            {**_describe(tensor), "shards": [list(chip.shape) for chip in module.get_device_tensors(tensor)]}
            for module, tensor in zip(self._modules, tensors, strict=True)
        ]
        for other in others:
            for name, value in first.items():
                if value != other[name]:
                    raise ContractBroken(
                        f"{path}: {name} {value} from one module, {other[name]} from the other"
                    )

    def _by_module(self, texts: Sequence[str]) -> str:
        return "; ".join(
            f"{module.__name__}: {text}" for module, text in zip(self._modules, texts, strict=True)
        )


class _Call:
    def __init__(self, owner: LockStep, sides: Sequence[Any], path: str) -> None:
        self.sides = sides
        self._owner = owner
        self._path = path

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._owner.call(self.sides, self._path, arguments, options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._owner._attribute(self.sides, name, f"{self._path}.{name}")


class PairValue:
    """A constant or object of each module, such as a dtype, a mesh device or a mapper."""

    def __init__(self, owner: LockStep, sides: Sequence[Any], path: str) -> None:
        self.sides = tuple(sides)
        self.shown_as = type(sides[0]).__name__
        self._owner = owner
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._owner._attribute(self.sides, name, f"{self._path}.{name}")

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._owner.call(self.sides, self._path, arguments, options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PairValue) and bool(self.sides[0] == other.sides[0])

    def __hash__(self) -> int:
        return hash(self.sides[0])

    def __str__(self) -> str:
        return str(self.sides[0])

    __repr__ = __str__


class PairTensor:
    """One tensor of each module."""

    def __init__(self, owner: LockStep, sides: Sequence[Any], path: str) -> None:
        self.sides = tuple(sides)
        self._owner = owner
        self._path = path

    @property
    def shape(self) -> Any:
        """Shape in the last module, ttnn, whose shapes support fewer operations."""
        return self.sides[-1].shape

    @property
    def dtype(self) -> Any:
        return PairValue(self._owner, [side.dtype for side in self.sides], "dtype")

    @property
    def layout(self) -> Any:
        return PairValue(self._owner, [side.layout for side in self.sides], "layout")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        sides = [getattr(side, name) for side in self.sides]
        return _Call(self._owner, sides, f"Tensor.{name}")


def _is_tensor(value: Any) -> bool:
    return type(value).__name__ == "Tensor"


def _is_enum(value: Any) -> bool:
    return (
        isinstance(value, enum.Enum)
        or type(type(value)).__name__ == "nb_enum"
        or isinstance(value, enum.EnumMeta)
    )


def _describe(tensor: Any) -> dict[str, Any]:
    return {
        "shape": list(tensor.shape),
        "dtype": _enum_name(tensor.dtype),
        "layout": _enum_name(tensor.layout),
        "storage": _enum_name(tensor.storage_type()),
    }


def _select_side(value: Any, side: int) -> Any:
    if isinstance(value, (PairTensor, PairValue, _Call)):
        return value.sides[side]
    if isinstance(value, (list, tuple)):
        return type(value)(_select_side(one, side) for one in value)
    if isinstance(value, dict):
        return {name: _select_side(one, side) for name, one in value.items()}
    return value


def _enum_name(value: Any) -> str:
    return str(value).rpartition(".")[2]


def _format(value: Any) -> str:
    if isinstance(value, PairTensor):
        facts = _describe(value.sides[0])
        shape = ",".join(str(size) for size in facts["shape"])
        host = " HOST" if facts["storage"] == "HOST" else ""
        return f"[{shape}] {facts['dtype']} {facts['layout']}{host}"
    if isinstance(value, PairValue):
        return _enum_name(value) if _is_enum(value.sides[0]) else value.shown_as
    if isinstance(value, np.ndarray):
        return f"array{list(value.shape)} {value.dtype}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_format(one) for one in value)})"
    return repr(value)


def _format_arguments(arguments: Any, options: Any) -> str:
    return ", ".join(
        [_format(one) for one in arguments] + [f"{name}={_format(one)}" for name, one in options.items()]
    )


def _type_of(value: Any) -> str:
    return (
        f"{type(value).__name__} of {len(value)}"
        if isinstance(value, (list, tuple))
        else type(value).__name__
    )


def _summarise(error: Exception) -> str:
    return f"{type(error).__name__} {str(error).split('backtrace:')[0].strip()[:300]}".replace("\n", " ")


def _names(sides: Sequence[Any], have: Sequence[bool]) -> str:
    return ", ".join(
        str(getattr(side, "__name__", side)) for side, has in zip(sides, have, strict=True) if has
    )
