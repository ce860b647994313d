"""The mesh of each worker, and the rules for which of its axes carries which kind of parallelism."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from services.config.field_types import AxisLength, ConfigRecord, NonNegativeInt, ThreadCount
from services.config.refusals import format_value
from services.errors import Refused

AxisName = Literal["data", "tensor"]
Backend = Literal["auto", "ttnn", "emulator"]


def check_backend(backend: str) -> None:
    """Check that `device_config.backend` may have this value.

    Raises:
        Refused: it may not.
    """
    known = get_args(Backend)
    if backend not in known:
        raise Refused(f"backend {format_value(backend)}: expected one of {', '.join(known)}; correct it")


class DeviceConfig(ConfigRecord):
    """The mesh that each worker drives (tt-train's `device_config`).

    Dimensions of size 1 are dropped. The enabled strategies take the remaining ones, data parallel first unless
    `axis_order` says otherwise. There must be as many strategies as remaining dimensions.

    Attributes:
        mesh_shape: (rows, columns) of chips.
        device_ids: ids of the chips on each worker's host, row by row of the mesh; empty: in the order of the links.
        enable_ddp: data parallelism: a batch is split over the data axis, every chip has all parameters.
        enable_fsdp: data parallelism with parameters sharded over the data axis and gathered when used; excludes
            `enable_ddp`.
        enable_tp: tensor parallelism: single layers are split over the tensor axis.
        axis_order: strategies in the order in which they take the remaining dimensions.
        backend: `ttnn`, `emulator`, or `auto`: `ttnn` if there is a device or simulator, else the emulator.
        dtype: type of weights and activations; None: bfloat16 on ttnn, float32 on the emulator.
        threads: threads of the emulator.
        trace: whether the step's device commands are recorded once and replayed.
    """

    mesh_shape: tuple[AxisLength, AxisLength] = (1, 1)
    device_ids: Annotated[tuple[NonNegativeInt, ...], Field(max_length=1024)] = ()
    enable_ddp: bool = False
    enable_fsdp: bool = False
    enable_tp: bool = False
    axis_order: tuple[AxisName, AxisName] = ("data", "tensor")
    backend: Backend = "auto"
    dtype: Literal["bfloat16", "float32"] | None = None
    threads: ThreadCount = 1
    trace: bool = False

    @property
    def data_axis(self) -> int | None:
        """Mesh axis (0 rows, 1 columns) over which a batch is split; None for none."""
        return self._axis("data")

    @property
    def tensor_axis(self) -> int | None:
        """Mesh axis (0 rows, 1 columns) over which layers are split; None for none."""
        return self._axis("tensor")

    @property
    def shard_parameters(self) -> bool:
        """Whether parameters are sharded over the data axis."""
        return self.enable_fsdp

    @property
    def data_parallel_size(self) -> int:
        """Number of devices over which a micro-batch is split; each takes batch_size / this number of sequences."""
        return 1 if self.data_axis is None else self.mesh_shape[self.data_axis]

    @property
    def tensor_parallel_size(self) -> int:
        """Number of devices over which a layer is split."""
        return 1 if self.tensor_axis is None else self.mesh_shape[self.tensor_axis]

    @property
    def _strategies(self) -> list[AxisName]:
        enabled = {"data": self.enable_ddp or self.enable_fsdp, "tensor": self.enable_tp}
        return [name for name in self.axis_order if enabled[name]]

    def _axis(self, name: AxisName) -> int | None:
        remaining = [axis for axis, length in enumerate(self.mesh_shape) if length > 1]
        return dict(zip(self._strategies, remaining, strict=True)).get(name)

    @model_validator(mode="after")
    def _check_device_ids(self) -> DeviceConfig:
        rows, columns = self.mesh_shape
        if self.device_ids and not len(self.device_ids) == len(set(self.device_ids)) == rows * columns:
            raise ValueError(
                f"device_config.device_ids: {format_value(list(self.device_ids))} given, expected a different id for "
                f"each of the {rows * columns} chips of mesh_shape {[rows, columns]}, row by row; correct them, or "
                "write [] to take the chips in the order of their links"
            )
        return self

    @model_validator(mode="after")
    def _check_strategies(self) -> DeviceConfig:
        shape = list(self.mesh_shape)
        if self.enable_ddp and self.enable_fsdp:
            raise ValueError(
                "device_config.enable_fsdp: true given together with enable_ddp: true, expected one of them, as both "
                "split the batch over the same axis; set enable_ddp: false"
            )
        if len(set(self.axis_order)) < len(self.axis_order):
            raise ValueError(
                f"device_config.mesh_shape: both axes are {self.axis_order[0]} parallel, expected one data parallel "
                'and one tensor parallel; write for example mesh_shape: [[2, 4], ["ddp", "tp"]]'
            )
        strategies = len(self._strategies)
        remaining = sum(length > 1 for length in shape)
        if strategies == remaining:
            return self
        enabled = [name for name in ("enable_ddp", "enable_fsdp", "enable_tp") if getattr(self, name)]
        flags = " and ".join(f"{name}: true" for name in enabled) or "no strategy enabled"
        raise ValueError(
            f"device_config.mesh_shape: {shape} given with {flags}, expected the number of parallelization axes "
            f"({strategies}) to be equal to the number of mesh shape dimensions longer than 1 ({remaining}); "
            f"{_fix_hint(shape, enabled, remaining)}"
        )


def _fix_hint(shape: list[int], enabled: list[str], remaining: int) -> str:
    """Return how to make mesh and strategies agree."""
    chips = shape[0] * shape[1]
    if remaining == 0:
        off = " and ".join(f"{name}: false" for name in enabled)
        return f"set {off}, or mesh_shape: {[1, 8] if len(enabled) == 1 else [2, 4]} for a LoudBox"
    if remaining == 1 and enabled:
        return f"set {enabled[-1]}: false, or give a mesh of two dimensions such as mesh_shape: [2, 4]"
    if remaining == 1:
        return "set enable_ddp: true (or enable_fsdp or enable_tp), or mesh_shape: [1, 1]"
    if enabled:
        other = "enable_ddp" if enabled == ["enable_tp"] else "enable_tp"
        return f"set {other}: true too, or mesh_shape: [1, {chips}]"
    return f"set enable_ddp: true and enable_tp: true, or mesh_shape: [1, {chips}] with one of them"
