"""Device modules in lock-step: each call goes to all of them, and what comes back is held to be alike.

`LockStep(emulator, ttnn)` stands where a device module stands. Every attribute, constant, object and tensor that it
gives has one side for each module; a call is made with each side's own arguments. After every call the results must
agree in kind, shape, dtype, layout, storage and the shard of each chip; refusals must be shared. Where they differ,
`ContractBroken` names the call, its index, its arguments and the difference. Values come from the first module (the
mocked ttnn reads zeros). With a single module it only records.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_CRASHES = ("deallocated", "on the host", "was closed")
"""What the emulator says of operands that make ttnn end the process: it isn't asked then."""


class ContractBroken(AssertionError):
    """The modules differ in what they accept or return.

    `accepted` says of each module whether it took the call, where they differ in that; else it is empty.
    """

    def __init__(self, text: str, accepted: tuple[bool, ...] = ()) -> None:
        super().__init__(text)
        self.accepted = accepted


class LockStep:
    """Device modules as one.

    `lines` holds every call made so far, one a line, in text that names no addresses. An object that isn't a tensor
    (a mapper, a kernel configuration) is told apart by the text of the call that made it: that is a line when it first
    occurs, and a number afterwards.
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

    def start(self) -> None:
        """Forget the calls made so far."""
        self.lines.clear()
        self._objects.clear()

    def _attribute(self, sides: Sequence[Any], name: str, path: str) -> Any:
        have = [hasattr(side, name) for side in sides]
        if not any(have):
            raise AttributeError(f"none of the modules has {path}")
        if not all(have):
            raise ContractBroken(f"{path}: {_names(sides, have)} has it, the other hasn't")
        found = [getattr(side, name) for side in sides]
        if all(callable(one) and not isinstance(one, enum.EnumMeta) for one in found) and not _is_enum(
            found[0]
        ):
            return _Call(self, found, path)
        return self.together(found, path)

    def together(self, sides: Sequence[Any], path: str) -> Any:
        """One object for what each module gave; raises ContractBroken if they aren't alike."""
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
                        f"{path}: {_kind(first)} from one module, {_kind(other)} from the other"
                    )
            parts = [
                self.together(part, f"{path}[{index}]") for index, part in enumerate(zip(*sides, strict=True))
            ]
            return type(first)(parts)
        if isinstance(first, np.ndarray):
            for other in sides[1:]:
                if not isinstance(other, np.ndarray) or (other.shape, other.dtype) != (
                    first.shape,
                    first.dtype,
                ):
                    raise ContractBroken(f"{path}: arrays {first.shape} {first.dtype} and {_kind(other)}")
            return first
        if first is None or isinstance(first, (bool, int, str)):
            if any(other != first for other in sides[1:]):
                raise ContractBroken(f"{path}: {first!r} from one module, {sides[1]!r} from the other")
            return first
        if isinstance(first, float):
            return first
        return PairValue(self, sides, path)

    def call(self, functions: Sequence[Callable[..., Any]], path: str, arguments: Any, options: Any) -> Any:
        """Call each module's function with its own arguments; the results as one."""
        index = len(self.lines)
        text = f"{path}({_show_all(arguments, options)})"
        results: list[Any] = []
        refusals: list[Exception | None] = []
        for side, function in enumerate(functions):
            if refusals and refusals[0] is not None and any(word in str(refusals[0]) for word in _CRASHES):
                raise refusals[0]
            try:
                results.append(function(*_side(arguments, side), **_side(options, side)))
                refusals.append(None)
            except (TypeError, RuntimeError) as error:
                results.append(None)
                refusals.append(error)
        if any(refusals):
            if not all(refusals):
                names = [_brief(refusal) if refusal else "accepted" for refusal in refusals]
                accepted = tuple(refusal is None for refusal in refusals)
                raise ContractBroken(f"call {index} {text}: {self._of(names)}", accepted)
            assert refusals[0] is not None
            raise refusals[0]
        try:
            result = self.together(results, path)
        except ContractBroken as error:
            raise ContractBroken(f"call {index} {text}: {error}") from None
        if isinstance(result, PairValue) and not _is_enum(result.sides[0]):
            result.shown_as = self._name(text, type(result.sides[0]).__name__)
        else:
            self.lines.append(f"{text} -> {_show(result)}")
        return result

    def _name(self, text: str, kind: str) -> str:
        """The number of the object that the call `text` makes; a line tells of it if it's new."""
        if text not in self._objects:
            number = sum(name.startswith(f"{kind}#") for name in self._objects.values()) + 1
            self._objects[text] = f"{kind}#{number}"
            self.lines.append(f"{self._objects[text]} = {text}")
        return self._objects[text]

    def _compare(self, path: str, tensors: Sequence[Any]) -> None:
        first, *others = [
            {**_facts(tensor), "shards": [list(chip.shape) for chip in module.get_device_tensors(tensor)]}
            for module, tensor in zip(self._modules, tensors, strict=True)
        ]
        for other in others:
            for name, value in first.items():
                if value != other[name]:
                    raise ContractBroken(
                        f"{path}: {name} {value} from one module, {other[name]} from the other"
                    )

    def _of(self, texts: Sequence[str]) -> str:
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
    """A constant or an object (a dtype, a layout, a mesh device, a mapper, an enumeration) of each module."""

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
    """A tensor of each module."""

    def __init__(self, owner: LockStep, sides: Sequence[Any], path: str) -> None:
        self.sides = tuple(sides)
        self._owner = owner
        self._path = path

    @property
    def shape(self) -> Any:
        """The last module's, so that what its shapes can't do (slices, sums) isn't done."""
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
        # ttnn's bfloat16 reads give something that is no array; the emulator refuses them.
        return _Call(self._owner, sides, f"Tensor.{name}")


def _is_tensor(value: Any) -> bool:
    return type(value).__name__ == "Tensor"


def _is_enum(value: Any) -> bool:
    return (
        isinstance(value, enum.Enum)
        or type(type(value)).__name__ == "nb_enum"
        or isinstance(value, enum.EnumMeta)
    )


def _facts(tensor: Any) -> dict[str, Any]:
    return {
        "shape": list(tensor.shape),
        "dtype": _word(tensor.dtype),
        "layout": _word(tensor.layout),
        "storage": _word(tensor.storage_type()),
    }


def _side(value: Any, side: int) -> Any:
    if isinstance(value, (PairTensor, PairValue, _Call)):
        return value.sides[side]
    if isinstance(value, (list, tuple)):
        return type(value)(_side(one, side) for one in value)
    if isinstance(value, dict):
        return {name: _side(one, side) for name, one in value.items()}
    return value


def _word(value: Any) -> str:
    return str(value).rpartition(".")[2]


def _show(value: Any) -> str:
    if isinstance(value, PairTensor):
        facts = _facts(value.sides[0])
        shape = ",".join(str(size) for size in facts["shape"])
        host = " HOST" if facts["storage"] == "HOST" else ""
        return f"[{shape}] {facts['dtype']} {facts['layout']}{host}"
    if isinstance(value, PairValue):
        return _word(value) if _is_enum(value.sides[0]) else value.shown_as
    if isinstance(value, np.ndarray):
        return f"array{list(value.shape)} {value.dtype}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_show(one) for one in value)})"
    return repr(value)


def _show_all(arguments: Any, options: Any) -> str:
    return ", ".join(
        [_show(one) for one in arguments] + [f"{name}={_show(one)}" for name, one in options.items()]
    )


def _kind(value: Any) -> str:
    return (
        f"{type(value).__name__} of {len(value)}"
        if isinstance(value, (list, tuple))
        else type(value).__name__
    )


def _brief(error: Exception) -> str:
    return f"{type(error).__name__} {str(error).split('backtrace:')[0].strip()[:300]}".replace("\n", " ")


def _names(sides: Sequence[Any], have: Sequence[bool]) -> str:
    return ", ".join(
        str(getattr(side, "__name__", side)) for side, has in zip(sides, have, strict=True) if has
    )
