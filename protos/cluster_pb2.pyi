from protos import checks_pb2 as _checks_pb2
from protos import files_pb2 as _files_pb2
from protos import tensors_pb2 as _tensors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeviceTask(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_TASK_UNSPECIFIED: _ClassVar[DeviceTask]
    OPEN_MESH: _ClassVar[DeviceTask]
    BUILD_JOB: _ClassVar[DeviceTask]
    CLOSE_MESH: _ClassVar[DeviceTask]
    CHECK_THE_MESH: _ClassVar[DeviceTask]
    LOAD_WEIGHTS: _ClassVar[DeviceTask]
    MAKE_WEIGHTS: _ClassVar[DeviceTask]
    DESCRIBE_MODEL: _ClassVar[DeviceTask]
    COMPUTE_GRADIENTS: _ClassVar[DeviceTask]
    REPEAT_GRADIENTS: _ClassVar[DeviceTask]
    EVALUATE_BATCHES: _ClassVar[DeviceTask]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    INITIALISE: _ClassVar[Phase]
    TRAIN: _ClassVar[Phase]
    EVALUATE: _ClassVar[Phase]
    VERIFY: _ClassVar[Phase]
DEVICE_TASK_UNSPECIFIED: DeviceTask
OPEN_MESH: DeviceTask
BUILD_JOB: DeviceTask
CLOSE_MESH: DeviceTask
CHECK_THE_MESH: DeviceTask
LOAD_WEIGHTS: DeviceTask
MAKE_WEIGHTS: DeviceTask
DESCRIBE_MODEL: DeviceTask
COMPUTE_GRADIENTS: DeviceTask
REPEAT_GRADIENTS: DeviceTask
EVALUATE_BATCHES: DeviceTask
PHASE_UNSPECIFIED: Phase
INITIALISE: Phase
TRAIN: Phase
EVALUATE: Phase
VERIFY: Phase

class Range(_message.Message):
    __slots__ = ("first", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "role", "name", "incarnation", "epoch_seen", "layout_hash", "shard_index", "shard_count", "fingerprint", "tensor_port", "heartbeat_seconds", "protocol_min", "cluster", "pipeline_host", "pipeline_port", "job", "first_stage", "stages", "host", "memory_bytes", "memory_free_bytes", "features", "external_job", "version")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_SEEN_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    SHARD_INDEX_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PORT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_HOST_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PORT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    FIRST_STAGE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_JOB_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    role: str
    name: str
    incarnation: str
    epoch_seen: int
    layout_hash: str
    shard_index: int
    shard_count: int
    fingerprint: _containers.ScalarMap[str, str]
    tensor_port: int
    heartbeat_seconds: float
    protocol_min: int
    cluster: str
    pipeline_host: str
    pipeline_port: int
    job: str
    first_stage: int
    stages: int
    host: str
    memory_bytes: int
    memory_free_bytes: int
    features: _containers.RepeatedScalarFieldContainer[str]
    external_job: str
    version: str
    def __init__(self, protocol: _Optional[int] = ..., role: _Optional[str] = ..., name: _Optional[str] = ..., incarnation: _Optional[str] = ..., epoch_seen: _Optional[int] = ..., layout_hash: _Optional[str] = ..., shard_index: _Optional[int] = ..., shard_count: _Optional[int] = ..., fingerprint: _Optional[_Mapping[str, str]] = ..., tensor_port: _Optional[int] = ..., heartbeat_seconds: _Optional[float] = ..., protocol_min: _Optional[int] = ..., cluster: _Optional[str] = ..., pipeline_host: _Optional[str] = ..., pipeline_port: _Optional[int] = ..., job: _Optional[str] = ..., first_stage: _Optional[int] = ..., stages: _Optional[int] = ..., host: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., memory_free_bytes: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ..., external_job: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class WorkerMessage(_message.Message):
    __slots__ = ("epoch", "hello", "heartbeat", "ready", "description", "weights_loaded", "computed", "evaluated", "failure", "fetching", "mesh_checked", "link_checked", "printed", "own_crc32c")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_LOADED_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    FETCHING_FIELD_NUMBER: _ClassVar[int]
    MESH_CHECKED_FIELD_NUMBER: _ClassVar[int]
    LINK_CHECKED_FIELD_NUMBER: _ClassVar[int]
    PRINTED_FIELD_NUMBER: _ClassVar[int]
    OWN_CRC32C_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    hello: Hello
    heartbeat: Heartbeat
    ready: Ready
    description: Description
    weights_loaded: WeightsLoaded
    computed: Computed
    evaluated: Evaluated
    failure: Failure
    fetching: Fetching
    mesh_checked: MeshChecked
    link_checked: LinkChecked
    printed: Printed
    own_crc32c: int
    def __init__(self, epoch: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., description: _Optional[_Union[Description, _Mapping]] = ..., weights_loaded: _Optional[_Union[WeightsLoaded, _Mapping]] = ..., computed: _Optional[_Union[Computed, _Mapping]] = ..., evaluated: _Optional[_Union[Evaluated, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., fetching: _Optional[_Union[Fetching, _Mapping]] = ..., mesh_checked: _Optional[_Union[MeshChecked, _Mapping]] = ..., link_checked: _Optional[_Union[LinkChecked, _Mapping]] = ..., printed: _Optional[_Union[Printed, _Mapping]] = ..., own_crc32c: _Optional[int] = ...) -> None: ...

class WorkerCommand(_message.Message):
    __slots__ = ("epoch", "welcome", "heartbeat", "join", "lease", "revoke", "resend", "window", "leave", "check_mesh", "check_link", "row", "own_crc32c")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    RESEND_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    CHECK_MESH_FIELD_NUMBER: _ClassVar[int]
    CHECK_LINK_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    OWN_CRC32C_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    welcome: Welcome
    heartbeat: Heartbeat
    join: Join
    lease: Lease
    revoke: Revoke
    resend: Resend
    window: Window
    leave: Leave
    check_mesh: CheckMesh
    check_link: CheckLink
    row: Row
    own_crc32c: int
    def __init__(self, epoch: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., join: _Optional[_Union[Join, _Mapping]] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., revoke: _Optional[_Union[Revoke, _Mapping]] = ..., resend: _Optional[_Union[Resend, _Mapping]] = ..., window: _Optional[_Union[Window, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., check_mesh: _Optional[_Union[CheckMesh, _Mapping]] = ..., check_link: _Optional[_Union[CheckLink, _Mapping]] = ..., row: _Optional[_Union[Row, _Mapping]] = ..., own_crc32c: _Optional[int] = ...) -> None: ...

class DeviceReport(_message.Message):
    __slots__ = ("task", "seconds", "waits_for")
    TASK_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    task: DeviceTask
    seconds: float
    waits_for: str
    def __init__(self, task: _Optional[_Union[DeviceTask, str]] = ..., seconds: _Optional[float] = ..., waits_for: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("device", "sent_seconds", "answered_seconds", "held_seconds", "sent_bytes", "received_bytes")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HELD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    device: DeviceReport
    sent_seconds: float
    answered_seconds: float
    held_seconds: float
    sent_bytes: int
    received_bytes: int
    def __init__(self, device: _Optional[_Union[DeviceReport, _Mapping]] = ..., sent_seconds: _Optional[float] = ..., answered_seconds: _Optional[float] = ..., held_seconds: _Optional[float] = ..., sent_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("name", "heartbeat_seconds", "session", "shards", "tensor_port", "shard_tensor_ports", "protocol", "cluster", "stall_seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PORT_FIELD_NUMBER: _ClassVar[int]
    SHARD_TENSOR_PORTS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    STALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    heartbeat_seconds: float
    session: int
    shards: _containers.RepeatedScalarFieldContainer[str]
    tensor_port: int
    shard_tensor_ports: _containers.RepeatedScalarFieldContainer[int]
    protocol: int
    cluster: str
    stall_seconds: float
    def __init__(self, name: _Optional[str] = ..., heartbeat_seconds: _Optional[float] = ..., session: _Optional[int] = ..., shards: _Optional[_Iterable[str]] = ..., tensor_port: _Optional[int] = ..., shard_tensor_ports: _Optional[_Iterable[int]] = ..., protocol: _Optional[int] = ..., cluster: _Optional[str] = ..., stall_seconds: _Optional[float] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("job", "spec_json", "first_stage", "stages", "build")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    FIRST_STAGE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    job: str
    spec_json: str
    first_stage: int
    stages: int
    build: int
    def __init__(self, job: _Optional[str] = ..., spec_json: _Optional[str] = ..., first_stage: _Optional[int] = ..., stages: _Optional[int] = ..., build: _Optional[int] = ...) -> None: ...

class LayoutPart(_message.Message):
    __slots__ = ("offset", "elements")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    elements: int
    def __init__(self, offset: _Optional[int] = ..., elements: _Optional[int] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("job", "layout_hash", "elements", "evaluation_batches", "fingerprint", "holds", "generation", "step", "tokens_per_micro_batch", "flops_per_token", "peak_flops", "first_stage", "stages", "parts", "shared", "build")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_BATCHES_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    FLOPS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PEAK_FLOPS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STAGE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    job: str
    layout_hash: str
    elements: int
    evaluation_batches: int
    fingerprint: _containers.ScalarMap[str, str]
    holds: bool
    generation: int
    step: int
    tokens_per_micro_batch: int
    flops_per_token: int
    peak_flops: float
    first_stage: int
    stages: int
    parts: _containers.RepeatedCompositeFieldContainer[LayoutPart]
    shared: _containers.RepeatedCompositeFieldContainer[LayoutPart]
    build: int
    def __init__(self, job: _Optional[str] = ..., layout_hash: _Optional[str] = ..., elements: _Optional[int] = ..., evaluation_batches: _Optional[int] = ..., fingerprint: _Optional[_Mapping[str, str]] = ..., holds: _Optional[bool] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., tokens_per_micro_batch: _Optional[int] = ..., flops_per_token: _Optional[int] = ..., peak_flops: _Optional[float] = ..., first_stage: _Optional[int] = ..., stages: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[LayoutPart, _Mapping]]] = ..., shared: _Optional[_Iterable[_Union[LayoutPart, _Mapping]]] = ..., build: _Optional[int] = ...) -> None: ...

class RowSeat(_message.Message):
    __slots__ = ("name", "incarnation", "address", "first_stage", "stages")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STAGE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: str
    address: str
    first_stage: int
    stages: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[str] = ..., address: _Optional[str] = ..., first_stage: _Optional[int] = ..., stages: _Optional[int] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("job", "row", "seats")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    job: str
    row: int
    seats: _containers.RepeatedCompositeFieldContainer[RowSeat]
    def __init__(self, job: _Optional[str] = ..., row: _Optional[int] = ..., seats: _Optional[_Iterable[_Union[RowSeat, _Mapping]]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("job", "generation", "step", "lease", "phase", "first", "count", "chunks", "checksums", "row")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    step: int
    lease: int
    phase: Phase
    first: int
    count: int
    chunks: _containers.RepeatedCompositeFieldContainer[Range]
    checksums: _containers.RepeatedScalarFieldContainer[int]
    row: int
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., lease: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., first: _Optional[int] = ..., count: _Optional[int] = ..., chunks: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., checksums: _Optional[_Iterable[int]] = ..., row: _Optional[int] = ...) -> None: ...

class Revoke(_message.Message):
    __slots__ = ("job", "lease")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    job: str
    lease: int
    def __init__(self, job: _Optional[str] = ..., lease: _Optional[int] = ...) -> None: ...

class Resend(_message.Message):
    __slots__ = ("job", "lease", "chunks")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    job: str
    lease: int
    chunks: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, job: _Optional[str] = ..., lease: _Optional[int] = ..., chunks: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("job", "generation", "step", "limit")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    step: int
    limit: int
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("job", "reason", "final", "succeeded", "layout_hash")
    JOB_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    job: str
    reason: str
    final: bool
    succeeded: bool
    layout_hash: str
    def __init__(self, job: _Optional[str] = ..., reason: _Optional[str] = ..., final: _Optional[bool] = ..., succeeded: _Optional[bool] = ..., layout_hash: _Optional[str] = ...) -> None: ...

class Description(_message.Message):
    __slots__ = ("job", "lease", "layout", "files")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _files_pb2.FileRef
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_files_pb2.FileRef, _Mapping]] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    job: str
    lease: int
    layout: _files_pb2.FileRef
    files: _containers.MessageMap[str, _files_pb2.FileRef]
    def __init__(self, job: _Optional[str] = ..., lease: _Optional[int] = ..., layout: _Optional[_Union[_files_pb2.FileRef, _Mapping]] = ..., files: _Optional[_Mapping[str, _files_pb2.FileRef]] = ...) -> None: ...

class WeightsLoaded(_message.Message):
    __slots__ = ("job", "generation", "step")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    step: int
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Checksum(_message.Message):
    __slots__ = ("micro_batch", "crc32c", "place")
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    micro_batch: int
    crc32c: int
    place: int
    def __init__(self, micro_batch: _Optional[int] = ..., crc32c: _Optional[int] = ..., place: _Optional[int] = ...) -> None: ...

class Computed(_message.Message):
    __slots__ = ("job", "generation", "step", "lease", "seconds", "tokens", "checksums", "findings")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    step: int
    lease: int
    seconds: float
    tokens: int
    checksums: _containers.RepeatedCompositeFieldContainer[Checksum]
    findings: _tensors_pb2.Findings
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., lease: _Optional[int] = ..., seconds: _Optional[float] = ..., tokens: _Optional[int] = ..., checksums: _Optional[_Iterable[_Union[Checksum, _Mapping]]] = ..., findings: _Optional[_Union[_tensors_pb2.Findings, _Mapping]] = ...) -> None: ...

class BatchLoss(_message.Message):
    __slots__ = ("index", "sum", "tokens")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    index: int
    sum: float
    tokens: int
    def __init__(self, index: _Optional[int] = ..., sum: _Optional[float] = ..., tokens: _Optional[int] = ...) -> None: ...

class Evaluated(_message.Message):
    __slots__ = ("job", "generation", "step", "lease", "losses")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    step: int
    lease: int
    losses: _containers.RepeatedCompositeFieldContainer[BatchLoss]
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., lease: _Optional[int] = ..., losses: _Optional[_Iterable[_Union[BatchLoss, _Mapping]]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("job", "lease", "reason", "retries", "neighbour", "too_large", "first_stage", "stages", "died", "build")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOUR_FIELD_NUMBER: _ClassVar[int]
    TOO_LARGE_FIELD_NUMBER: _ClassVar[int]
    FIRST_STAGE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    DIED_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    job: str
    lease: int
    reason: str
    retries: bool
    neighbour: str
    too_large: bool
    first_stage: int
    stages: int
    died: bool
    build: int
    def __init__(self, job: _Optional[str] = ..., lease: _Optional[int] = ..., reason: _Optional[str] = ..., retries: _Optional[bool] = ..., neighbour: _Optional[str] = ..., too_large: _Optional[bool] = ..., first_stage: _Optional[int] = ..., stages: _Optional[int] = ..., died: _Optional[bool] = ..., build: _Optional[int] = ...) -> None: ...

class Fetching(_message.Message):
    __slots__ = ("job", "input", "bytes", "size", "problem", "local")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    job: str
    input: str
    bytes: int
    size: int
    problem: str
    local: bool
    def __init__(self, job: _Optional[str] = ..., input: _Optional[str] = ..., bytes: _Optional[int] = ..., size: _Optional[int] = ..., problem: _Optional[str] = ..., local: _Optional[bool] = ...) -> None: ...

class Printed(_message.Message):
    __slots__ = ("job", "lines")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    job: str
    lines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[str] = ..., lines: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckMesh(_message.Message):
    __slots__ = ("number", "rows", "columns", "backend")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    number: int
    rows: int
    columns: int
    backend: str
    def __init__(self, number: _Optional[int] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ..., backend: _Optional[str] = ...) -> None: ...

class MeshChecked(_message.Message):
    __slots__ = ("number", "report")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    number: int
    report: _checks_pb2.MeshReport
    def __init__(self, number: _Optional[int] = ..., report: _Optional[_Union[_checks_pb2.MeshReport, _Mapping]] = ...) -> None: ...

class CheckLink(_message.Message):
    __slots__ = ("number", "shard", "peer", "address")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    number: int
    shard: int
    peer: str
    address: str
    def __init__(self, number: _Optional[int] = ..., shard: _Optional[int] = ..., peer: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class LinkChecked(_message.Message):
    __slots__ = ("number", "report")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    number: int
    report: _checks_pb2.LinkReport
    def __init__(self, number: _Optional[int] = ..., report: _Optional[_Union[_checks_pb2.LinkReport, _Mapping]] = ...) -> None: ...

class OptimizerCommand(_message.Message):
    __slots__ = ("epoch", "hello", "heartbeat", "open", "initialise", "send_weights", "close", "start_over", "save_checkpoint", "own_crc32c")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    INITIALISE_FIELD_NUMBER: _ClassVar[int]
    SEND_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    START_OVER_FIELD_NUMBER: _ClassVar[int]
    SAVE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    OWN_CRC32C_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    hello: Hello
    heartbeat: Heartbeat
    open: Open
    initialise: Initialise
    send_weights: SendWeights
    close: Close
    start_over: StartOver
    save_checkpoint: SaveCheckpoint
    own_crc32c: int
    def __init__(self, epoch: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., initialise: _Optional[_Union[Initialise, _Mapping]] = ..., send_weights: _Optional[_Union[SendWeights, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., start_over: _Optional[_Union[StartOver, _Mapping]] = ..., save_checkpoint: _Optional[_Union[SaveCheckpoint, _Mapping]] = ..., own_crc32c: _Optional[int] = ...) -> None: ...

class OptimizerMessage(_message.Message):
    __slots__ = ("epoch", "hello", "heartbeat", "optimizer_status", "commit", "checkpoint_written", "failure", "checkpoint_missed", "own_crc32c")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_STATUS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_MISSED_FIELD_NUMBER: _ClassVar[int]
    OWN_CRC32C_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    hello: Hello
    heartbeat: Heartbeat
    optimizer_status: OptimizerStatus
    commit: Commit
    checkpoint_written: CheckpointWritten
    failure: Failure
    checkpoint_missed: CheckpointMissed
    own_crc32c: int
    def __init__(self, epoch: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., optimizer_status: _Optional[_Union[OptimizerStatus, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., checkpoint_written: _Optional[_Union[CheckpointWritten, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., checkpoint_missed: _Optional[_Union[CheckpointMissed, _Mapping]] = ..., own_crc32c: _Optional[int] = ...) -> None: ...

class Void(_message.Message):
    __slots__ = ("generation", "step")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("job", "spec_json", "generation", "void")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    job: str
    spec_json: str
    generation: int
    void: _containers.RepeatedCompositeFieldContainer[Void]
    def __init__(self, job: _Optional[str] = ..., spec_json: _Optional[str] = ..., generation: _Optional[int] = ..., void: _Optional[_Iterable[_Union[Void, _Mapping]]] = ...) -> None: ...

class OptimizerStatus(_message.Message):
    __slots__ = ("job", "state", "generation", "step", "layout_hash", "elements", "missing")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[OptimizerStatus.State]
        EMPTY: _ClassVar[OptimizerStatus.State]
        RECEIVING: _ClassVar[OptimizerStatus.State]
        TRAINING: _ClassVar[OptimizerStatus.State]
    STATE_UNSPECIFIED: OptimizerStatus.State
    EMPTY: OptimizerStatus.State
    RECEIVING: OptimizerStatus.State
    TRAINING: OptimizerStatus.State
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    job: str
    state: OptimizerStatus.State
    generation: int
    step: int
    layout_hash: str
    elements: int
    missing: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, job: _Optional[str] = ..., state: _Optional[_Union[OptimizerStatus.State, str]] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., layout_hash: _Optional[str] = ..., elements: _Optional[int] = ..., missing: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class Initialise(_message.Message):
    __slots__ = ("job", "layout", "files")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _files_pb2.FileRef
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_files_pb2.FileRef, _Mapping]] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    job: str
    layout: _files_pb2.FileRef
    files: _containers.MessageMap[str, _files_pb2.FileRef]
    def __init__(self, job: _Optional[str] = ..., layout: _Optional[_Union[_files_pb2.FileRef, _Mapping]] = ..., files: _Optional[_Mapping[str, _files_pb2.FileRef]] = ...) -> None: ...

class SendWeights(_message.Message):
    __slots__ = ("job", "generation", "step")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    step: int
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("job", "checkpoint")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    job: str
    checkpoint: bool
    def __init__(self, job: _Optional[str] = ..., checkpoint: _Optional[bool] = ...) -> None: ...

class SaveCheckpoint(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class StartOver(_message.Message):
    __slots__ = ("job", "generation")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("job", "generation", "step", "applied", "grad_norm", "learning_rate", "non_finite")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    step: int
    applied: bool
    grad_norm: float
    learning_rate: float
    non_finite: _containers.RepeatedCompositeFieldContainer[_tensors_pb2.NonFinite]
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., applied: _Optional[bool] = ..., grad_norm: _Optional[float] = ..., learning_rate: _Optional[float] = ..., non_finite: _Optional[_Iterable[_Union[_tensors_pb2.NonFinite, _Mapping]]] = ...) -> None: ...

class CheckpointWritten(_message.Message):
    __slots__ = ("job", "generation", "step", "path", "model_sha256")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    step: int
    path: str
    model_sha256: str
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., path: _Optional[str] = ..., model_sha256: _Optional[str] = ...) -> None: ...

class CheckpointMissed(_message.Message):
    __slots__ = ("job", "generation", "step", "reason")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    step: int
    reason: str
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("job", "step", "newest")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    job: str
    step: int
    newest: bool
    def __init__(self, job: _Optional[str] = ..., step: _Optional[int] = ..., newest: _Optional[bool] = ...) -> None: ...

class CheckpointFiles(_message.Message):
    __slots__ = ("step", "files")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _files_pb2.FileRef
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_files_pb2.FileRef, _Mapping]] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    step: int
    files: _containers.MessageMap[str, _files_pb2.FileRef]
    def __init__(self, step: _Optional[int] = ..., files: _Optional[_Mapping[str, _files_pb2.FileRef]] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ("jobs", "hashes")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    hashes: bool
    def __init__(self, jobs: _Optional[_Iterable[str]] = ..., hashes: _Optional[bool] = ...) -> None: ...

class StoredCheckpoint(_message.Message):
    __slots__ = ("job", "step", "bytes", "model_sha256", "in_use", "problem", "tokenizer_sha256")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    job: str
    step: int
    bytes: int
    model_sha256: str
    in_use: bool
    problem: str
    tokenizer_sha256: str
    def __init__(self, job: _Optional[str] = ..., step: _Optional[int] = ..., bytes: _Optional[int] = ..., model_sha256: _Optional[str] = ..., in_use: _Optional[bool] = ..., problem: _Optional[str] = ..., tokenizer_sha256: _Optional[str] = ...) -> None: ...

class RemoveCheckpointsRequest(_message.Message):
    __slots__ = ("job", "all", "steps")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    job: str
    all: bool
    steps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job: _Optional[str] = ..., all: _Optional[bool] = ..., steps: _Optional[_Iterable[int]] = ...) -> None: ...

class RemoveCheckpointsReply(_message.Message):
    __slots__ = ("bytes", "checkpoints", "kept")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    checkpoints: int
    kept: str
    def __init__(self, bytes: _Optional[int] = ..., checkpoints: _Optional[int] = ..., kept: _Optional[str] = ...) -> None: ...
