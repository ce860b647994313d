from protos import tensors_pb2 as _tensors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ArrayKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ARRAY_KIND_UNSPECIFIED: _ClassVar[ArrayKind]
    ACTIVATION: _ClassVar[ArrayKind]
    ACTIVATION_GRADIENT: _ClassVar[ArrayKind]
    TIED_PART: _ClassVar[ArrayKind]
ARRAY_KIND_UNSPECIFIED: ArrayKind
ACTIVATION: ArrayKind
ACTIVATION_GRADIENT: ArrayKind
TIED_PART: ArrayKind

class ArrayHeader(_message.Message):
    __slots__ = ("job", "epoch", "generation", "step", "lease", "row", "range", "micro_batch", "kind", "shape", "dtype", "number", "offset_bytes", "crc32c", "own_crc32c")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    OWN_CRC32C_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    generation: int
    step: int
    lease: int
    row: int
    range: int
    micro_batch: int
    kind: ArrayKind
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: _tensors_pb2.DType
    number: int
    offset_bytes: int
    crc32c: int
    own_crc32c: int
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., lease: _Optional[int] = ..., row: _Optional[int] = ..., range: _Optional[int] = ..., micro_batch: _Optional[int] = ..., kind: _Optional[_Union[ArrayKind, str]] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Union[_tensors_pb2.DType, str]] = ..., number: _Optional[int] = ..., offset_bytes: _Optional[int] = ..., crc32c: _Optional[int] = ..., own_crc32c: _Optional[int] = ...) -> None: ...

class LanePosition(_message.Message):
    __slots__ = ("kind", "arrived", "taken", "lease", "filled_bytes", "sent", "sending", "sent_bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    FILLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    SENDING_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: ArrayKind
    arrived: int
    taken: int
    lease: int
    filled_bytes: int
    sent: int
    sending: int
    sent_bytes: int
    def __init__(self, kind: _Optional[_Union[ArrayKind, str]] = ..., arrived: _Optional[int] = ..., taken: _Optional[int] = ..., lease: _Optional[int] = ..., filled_bytes: _Optional[int] = ..., sent: _Optional[int] = ..., sending: _Optional[int] = ..., sent_bytes: _Optional[int] = ...) -> None: ...

class LinkState(_message.Message):
    __slots__ = ("job", "row", "stage", "neighbour", "name", "incarnation", "lanes", "own_crc32c")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOUR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    OWN_CRC32C_FIELD_NUMBER: _ClassVar[int]
    job: str
    row: int
    stage: int
    neighbour: int
    name: str
    incarnation: str
    lanes: _containers.RepeatedCompositeFieldContainer[LanePosition]
    own_crc32c: int
    def __init__(self, job: _Optional[str] = ..., row: _Optional[int] = ..., stage: _Optional[int] = ..., neighbour: _Optional[int] = ..., name: _Optional[str] = ..., incarnation: _Optional[str] = ..., lanes: _Optional[_Iterable[_Union[LanePosition, _Mapping]]] = ..., own_crc32c: _Optional[int] = ...) -> None: ...

class PassMessage(_message.Message):
    __slots__ = ("header", "state", "shared", "payload")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: ArrayHeader
    state: LinkState
    shared: _tensors_pb2.SharedPlaces
    payload: bytes
    def __init__(self, header: _Optional[_Union[ArrayHeader, _Mapping]] = ..., state: _Optional[_Union[LinkState, _Mapping]] = ..., shared: _Optional[_Union[_tensors_pb2.SharedPlaces, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...
