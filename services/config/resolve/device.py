"""Resolution of `device_config`, with either form of a mesh, to the mesh of each worker."""

from __future__ import annotations

from typing import Any, Literal

from services.config.device import AxisName, DeviceConfig
from services.config.refusals import format_value
from services.config.sections import DeviceSection, MixedPrecision, parse_section
from services.errors import Refused

_LONGEST_AXIS = 1024
_STRATEGY_OF = {
    "ddp": "enable_ddp",
    "dp": "enable_ddp",
    "data": "enable_ddp",
    "fsdp": "enable_fsdp",
    "tp": "enable_tp",
}
"""Flag by the axis name in the named form of a mesh."""


def resolve_device(
    value: Any, mixed_precision: MixedPrecision | None = None
) -> tuple[DeviceConfig, list[str]]:
    """Return the mesh that `device_config` describes, and a line for each setting without effect.

    Args:
        value: the section as read. Its mesh is `[rows, columns]`, or `[[rows, columns], [name, name]]`.
        mixed_precision: `training_config.mixed_precision`: type of weights and activations on the mesh.

    Raises:
        Refused: something is wrong; the first error is named.
    """
    section = parse_section(value, "device_config", DeviceSection)
    (rows, columns), names = _mesh(section.mesh_shape)
    flags = {
        "enable_ddp": section.enable_ddp,
        "enable_fsdp": section.enable_fsdp,
        "enable_tp": section.enable_tp,
    }
    axis_order: tuple[AxisName, AxisName] = ("data", "tensor")
    if names:
        for name, length in zip(names, (rows, columns), strict=True):
            flags[_STRATEGY_OF[name]] |= length > 1
        first, second = (_axis_name(name) for name in names)
        if rows > 1 and columns > 1:
            axis_order = (first, second)
    device = DeviceConfig(
        mesh_shape=(rows, columns),
        device_ids=tuple(section.device_ids),
        **flags,
        axis_order=axis_order,
        backend=section.backend,
        dtype=_dtype(section, mixed_precision),
        threads=section.threads,
        trace=section.trace,
    )
    notices = []
    if device.device_ids and device.backend not in ("auto", "ttnn"):
        notices.append(
            "device_config.device_ids: is without effect with backend emulator, which has no chips"
        )
    if device.threads > 1 and device.backend == "ttnn":
        notices.append(
            f"device_config.threads: {device.threads} is without effect with backend ttnn: a device has its own"
        )
    return device, notices


def _dtype(
    section: DeviceSection, mixed_precision: MixedPrecision | None
) -> Literal["bfloat16", "float32"] | None:
    """Return the type of weights and activations, from Tiermesh's key or the one of JAX trainers."""
    if mixed_precision is None or mixed_precision is False:
        return section.dtype
    dtype: Literal["bfloat16", "float32"] = (
        "float32" if mixed_precision in ("fp32", "float32") else "bfloat16"
    )
    if section.dtype not in (None, dtype):
        raise Refused(
            f"training_config.mixed_precision: {format_value(mixed_precision)} given with device_config.dtype "
            f"{section.dtype}, expected the same; remove one of them"
        )
    return dtype


def _mesh(shape: list[Any]) -> tuple[tuple[int, int], list[str]]:
    """Return (rows, columns), and the names of the axes if there are any."""
    given, names = shape, []
    if len(shape) == 2 and isinstance(shape[0], list) and isinstance(shape[1], list):
        shape, names = shape
        if len(names) != 2 or any(not isinstance(name, str) or name not in _STRATEGY_OF for name in names):
            raise Refused(
                f"device_config.mesh_shape: axes {format_value(names)} given, expected two names of "
                f'{", ".join(_STRATEGY_OF)}; write for example mesh_shape: [[2, 4], ["fsdp", "tp"]]'
            )
    lengths = [length for length in shape if type(length) is int and 1 <= length <= _LONGEST_AXIS]
    if len(shape) != 2 or len(lengths) != 2:
        raise Refused(
            f"device_config.mesh_shape: {format_value(given)} given, expected [rows, columns], each from 1 to "
            f"{_LONGEST_AXIS}; write for example mesh_shape: [1, 8]"
        )
    return (lengths[0], lengths[1]), names


def _axis_name(name: str) -> AxisName:
    return "tensor" if name == "tp" else "data"
