from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AxisReport(_message.Message):
    __slots__ = ("axis", "devices", "seconds", "wrong", "wrong_count")
    AXIS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    WRONG_FIELD_NUMBER: _ClassVar[int]
    WRONG_COUNT_FIELD_NUMBER: _ClassVar[int]
    axis: int
    devices: int
    seconds: float
    wrong: _containers.RepeatedScalarFieldContainer[str]
    wrong_count: int
    def __init__(self, axis: _Optional[int] = ..., devices: _Optional[int] = ..., seconds: _Optional[float] = ..., wrong: _Optional[_Iterable[str]] = ..., wrong_count: _Optional[int] = ...) -> None: ...

class MeshReport(_message.Message):
    __slots__ = ("rows", "columns", "backend", "arch", "axes", "problem")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    ARCH_FIELD_NUMBER: _ClassVar[int]
    AXES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    backend: str
    arch: str
    axes: _containers.RepeatedCompositeFieldContainer[AxisReport]
    problem: str
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ..., backend: _Optional[str] = ..., arch: _Optional[str] = ..., axes: _Optional[_Iterable[_Union[AxisReport, _Mapping]]] = ..., problem: _Optional[str] = ...) -> None: ...

class LinkReport(_message.Message):
    __slots__ = ("latency_seconds", "up_bytes_per_second", "down_bytes_per_second", "shared_memory", "main_port", "problem", "wrong_bits")
    LATENCY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UP_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DOWN_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    MAIN_PORT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    WRONG_BITS_FIELD_NUMBER: _ClassVar[int]
    latency_seconds: float
    up_bytes_per_second: float
    down_bytes_per_second: float
    shared_memory: bool
    main_port: bool
    problem: str
    wrong_bits: bool
    def __init__(self, latency_seconds: _Optional[float] = ..., up_bytes_per_second: _Optional[float] = ..., down_bytes_per_second: _Optional[float] = ..., shared_memory: _Optional[bool] = ..., main_port: _Optional[bool] = ..., problem: _Optional[str] = ..., wrong_bits: _Optional[bool] = ...) -> None: ...
