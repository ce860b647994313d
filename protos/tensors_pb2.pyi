from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    FLOAT32: _ClassVar[DType]
    BFLOAT16: _ClassVar[DType]
    FLOAT16: _ClassVar[DType]

class ChunkKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHUNK_KIND_UNSPECIFIED: _ClassVar[ChunkKind]
    GRADIENT: _ClassVar[ChunkKind]
    WEIGHTS: _ClassVar[ChunkKind]
    INITIAL_WEIGHTS: _ClassVar[ChunkKind]
    KNOWN_VALUES: _ClassVar[ChunkKind]
DTYPE_UNSPECIFIED: DType
FLOAT32: DType
BFLOAT16: DType
FLOAT16: DType
CHUNK_KIND_UNSPECIFIED: ChunkKind
GRADIENT: ChunkKind
WEIGHTS: ChunkKind
INITIAL_WEIGHTS: ChunkKind
KNOWN_VALUES: ChunkKind

class NonFinite(_message.Message):
    __slots__ = ("micro_batch", "parameter", "worker")
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    micro_batch: int
    parameter: str
    worker: str
    def __init__(self, micro_batch: _Optional[int] = ..., parameter: _Optional[str] = ..., worker: _Optional[str] = ...) -> None: ...

class Findings(_message.Message):
    __slots__ = ("losses", "non_finite", "count")
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    losses: _containers.RepeatedScalarFieldContainer[float]
    non_finite: _containers.RepeatedCompositeFieldContainer[NonFinite]
    count: int
    def __init__(self, losses: _Optional[_Iterable[float]] = ..., non_finite: _Optional[_Iterable[_Union[NonFinite, _Mapping]]] = ..., count: _Optional[int] = ...) -> None: ...

class ChunkHeader(_message.Message):
    __slots__ = ("job", "epoch", "generation", "step", "lease", "incarnation", "kind", "index", "offset", "elements", "dtype", "crc32c", "findings", "own_crc32c")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    OWN_CRC32C_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    generation: int
    step: int
    lease: int
    incarnation: str
    kind: ChunkKind
    index: int
    offset: int
    elements: int
    dtype: DType
    crc32c: int
    findings: Findings
    own_crc32c: int
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., lease: _Optional[int] = ..., incarnation: _Optional[str] = ..., kind: _Optional[_Union[ChunkKind, str]] = ..., index: _Optional[int] = ..., offset: _Optional[int] = ..., elements: _Optional[int] = ..., dtype: _Optional[_Union[DType, str]] = ..., crc32c: _Optional[int] = ..., findings: _Optional[_Union[Findings, _Mapping]] = ..., own_crc32c: _Optional[int] = ...) -> None: ...

class SharedPlaces(_message.Message):
    __slots__ = ("identity", "descriptor", "sequence", "indices", "positions", "own_crc32c")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    OWN_CRC32C_FIELD_NUMBER: _ClassVar[int]
    identity: int
    descriptor: int
    sequence: int
    indices: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    own_crc32c: int
    def __init__(self, identity: _Optional[int] = ..., descriptor: _Optional[int] = ..., sequence: _Optional[int] = ..., indices: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., own_crc32c: _Optional[int] = ...) -> None: ...

class LinkRound(_message.Message):
    __slots__ = ("number", "up_elements", "down_elements", "add")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    UP_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    DOWN_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    number: int
    up_elements: int
    down_elements: int
    add: bool
    def __init__(self, number: _Optional[int] = ..., up_elements: _Optional[int] = ..., down_elements: _Optional[int] = ..., add: _Optional[bool] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("header", "round", "shared", "payload")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: ChunkHeader
    round: LinkRound
    shared: SharedPlaces
    payload: bytes
    def __init__(self, header: _Optional[_Union[ChunkHeader, _Mapping]] = ..., round: _Optional[_Union[LinkRound, _Mapping]] = ..., shared: _Optional[_Union[SharedPlaces, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...
