from protos import cluster_pb2 as _cluster_pb2
from protos import files_pb2 as _files_pb2
from protos import tensors_pb2 as _tensors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PlaneOrders(_message.Message):
    __slots__ = ("epoch", "orders", "number", "own_crc32c")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OWN_CRC32C_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    orders: _containers.RepeatedCompositeFieldContainer[PlaneOrder]
    number: int
    own_crc32c: int
    def __init__(self, epoch: _Optional[int] = ..., orders: _Optional[_Iterable[_Union[PlaneOrder, _Mapping]]] = ..., number: _Optional[int] = ..., own_crc32c: _Optional[int] = ...) -> None: ...

class PlaneOrder(_message.Message):
    __slots__ = ("hello", "heartbeat", "worker_attends", "worker_left", "open_part", "drop_part", "keep_pieces", "discard_pieces", "drop", "merge", "finish", "drop_all", "stage", "update", "make_weights", "send_version", "copy", "keep_sum", "drop_pieces", "pass_job", "drop_copy")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    WORKER_ATTENDS_FIELD_NUMBER: _ClassVar[int]
    WORKER_LEFT_FIELD_NUMBER: _ClassVar[int]
    OPEN_PART_FIELD_NUMBER: _ClassVar[int]
    DROP_PART_FIELD_NUMBER: _ClassVar[int]
    KEEP_PIECES_FIELD_NUMBER: _ClassVar[int]
    DISCARD_PIECES_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    DROP_ALL_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    MAKE_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    SEND_VERSION_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    KEEP_SUM_FIELD_NUMBER: _ClassVar[int]
    DROP_PIECES_FIELD_NUMBER: _ClassVar[int]
    PASS_JOB_FIELD_NUMBER: _ClassVar[int]
    DROP_COPY_FIELD_NUMBER: _ClassVar[int]
    hello: _cluster_pb2.Hello
    heartbeat: _cluster_pb2.Heartbeat
    worker_attends: WorkerAttends
    worker_left: WorkerLeft
    open_part: OpenPart
    drop_part: DropPart
    keep_pieces: KeepPieces
    discard_pieces: DiscardPieces
    drop: DropSum
    merge: MergeSums
    finish: FinishSum
    drop_all: DropSums
    stage: StageChunks
    update: UpdatePart
    make_weights: MakeWeights
    send_version: SendVersion
    copy: CopyPart
    keep_sum: KeepSum
    drop_pieces: DropPieces
    pass_job: PassJob
    drop_copy: DropCopy
    def __init__(self, hello: _Optional[_Union[_cluster_pb2.Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[_cluster_pb2.Heartbeat, _Mapping]] = ..., worker_attends: _Optional[_Union[WorkerAttends, _Mapping]] = ..., worker_left: _Optional[_Union[WorkerLeft, _Mapping]] = ..., open_part: _Optional[_Union[OpenPart, _Mapping]] = ..., drop_part: _Optional[_Union[DropPart, _Mapping]] = ..., keep_pieces: _Optional[_Union[KeepPieces, _Mapping]] = ..., discard_pieces: _Optional[_Union[DiscardPieces, _Mapping]] = ..., drop: _Optional[_Union[DropSum, _Mapping]] = ..., merge: _Optional[_Union[MergeSums, _Mapping]] = ..., finish: _Optional[_Union[FinishSum, _Mapping]] = ..., drop_all: _Optional[_Union[DropSums, _Mapping]] = ..., stage: _Optional[_Union[StageChunks, _Mapping]] = ..., update: _Optional[_Union[UpdatePart, _Mapping]] = ..., make_weights: _Optional[_Union[MakeWeights, _Mapping]] = ..., send_version: _Optional[_Union[SendVersion, _Mapping]] = ..., copy: _Optional[_Union[CopyPart, _Mapping]] = ..., keep_sum: _Optional[_Union[KeepSum, _Mapping]] = ..., drop_pieces: _Optional[_Union[DropPieces, _Mapping]] = ..., pass_job: _Optional[_Union[PassJob, _Mapping]] = ..., drop_copy: _Optional[_Union[DropCopy, _Mapping]] = ...) -> None: ...

class PlaneReports(_message.Message):
    __slots__ = ("epoch", "reports", "number", "own_crc32c")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OWN_CRC32C_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    reports: _containers.RepeatedCompositeFieldContainer[PlaneReport]
    number: int
    own_crc32c: int
    def __init__(self, epoch: _Optional[int] = ..., reports: _Optional[_Iterable[_Union[PlaneReport, _Mapping]]] = ..., number: _Optional[int] = ..., own_crc32c: _Optional[int] = ...) -> None: ...

class PlaneReport(_message.Message):
    __slots__ = ("hello", "heartbeat", "worker_exchanges", "worker_gone", "part_opened", "arrived", "staged", "updated", "broke", "order_failed", "copied")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    WORKER_EXCHANGES_FIELD_NUMBER: _ClassVar[int]
    WORKER_GONE_FIELD_NUMBER: _ClassVar[int]
    PART_OPENED_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    BROKE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FAILED_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    hello: _cluster_pb2.Hello
    heartbeat: _cluster_pb2.Heartbeat
    worker_exchanges: WorkerExchanges
    worker_gone: WorkerGone
    part_opened: PartOpened
    arrived: ArrivedPieces
    staged: StagedChunks
    updated: UpdatedPart
    broke: PartBroke
    order_failed: OrderFailed
    copied: CopiedPart
    def __init__(self, hello: _Optional[_Union[_cluster_pb2.Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[_cluster_pb2.Heartbeat, _Mapping]] = ..., worker_exchanges: _Optional[_Union[WorkerExchanges, _Mapping]] = ..., worker_gone: _Optional[_Union[WorkerGone, _Mapping]] = ..., part_opened: _Optional[_Union[PartOpened, _Mapping]] = ..., arrived: _Optional[_Union[ArrivedPieces, _Mapping]] = ..., staged: _Optional[_Union[StagedChunks, _Mapping]] = ..., updated: _Optional[_Union[UpdatedPart, _Mapping]] = ..., broke: _Optional[_Union[PartBroke, _Mapping]] = ..., order_failed: _Optional[_Union[OrderFailed, _Mapping]] = ..., copied: _Optional[_Union[CopiedPart, _Mapping]] = ...) -> None: ...

class WorkerAttends(_message.Message):
    __slots__ = ("session", "incarnation", "name")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    session: int
    incarnation: str
    name: str
    def __init__(self, session: _Optional[int] = ..., incarnation: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class WorkerLeft(_message.Message):
    __slots__ = ("session", "reason")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session: int
    reason: str
    def __init__(self, session: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class WorkerExchanges(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: int
    def __init__(self, session: _Optional[int] = ...) -> None: ...

class WorkerGone(_message.Message):
    __slots__ = ("session", "reason", "code")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    session: int
    reason: str
    code: int
    def __init__(self, session: _Optional[int] = ..., reason: _Optional[str] = ..., code: _Optional[int] = ...) -> None: ...

class PassJob(_message.Message):
    __slots__ = ("job", "elements", "gradients", "weights", "pieces", "parts")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    job: str
    elements: int
    gradients: _tensors_pb2.DType
    weights: _tensors_pb2.DType
    pieces: bool
    parts: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.LayoutPart]
    def __init__(self, job: _Optional[str] = ..., elements: _Optional[int] = ..., gradients: _Optional[_Union[_tensors_pb2.DType, str]] = ..., weights: _Optional[_Union[_tensors_pb2.DType, str]] = ..., pieces: _Optional[bool] = ..., parts: _Optional[_Iterable[_Union[_cluster_pb2.LayoutPart, _Mapping]]] = ...) -> None: ...

class SendSum(_message.Message):
    __slots__ = ("header", "chunks", "first_element")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    FIRST_ELEMENT_FIELD_NUMBER: _ClassVar[int]
    header: _tensors_pb2.ChunkHeader
    chunks: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Range]
    first_element: int
    def __init__(self, header: _Optional[_Union[_tensors_pb2.ChunkHeader, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[_cluster_pb2.Range, _Mapping]]] = ..., first_element: _Optional[int] = ...) -> None: ...

class OpenPart(_message.Message):
    __slots__ = ("opening", "job", "spec_json", "layout", "tensors")
    OPENING_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    opening: int
    job: str
    spec_json: str
    layout: _files_pb2.FileRef
    tensors: _files_pb2.FileRef
    def __init__(self, opening: _Optional[int] = ..., job: _Optional[str] = ..., spec_json: _Optional[str] = ..., layout: _Optional[_Union[_files_pb2.FileRef, _Mapping]] = ..., tensors: _Optional[_Union[_files_pb2.FileRef, _Mapping]] = ...) -> None: ...

class PartOpened(_message.Message):
    __slots__ = ("opening", "job")
    OPENING_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    opening: int
    job: str
    def __init__(self, opening: _Optional[int] = ..., job: _Optional[str] = ...) -> None: ...

class DropPart(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class PartBroke(_message.Message):
    __slots__ = ("reason", "opening", "job")
    REASON_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    reason: str
    opening: int
    job: str
    def __init__(self, reason: _Optional[str] = ..., opening: _Optional[int] = ..., job: _Optional[str] = ...) -> None: ...

class OrderFailed(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ArrivedPieces(_message.Message):
    __slots__ = ("session", "arrival", "header", "in_place", "pieces")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    IN_PLACE_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    session: int
    arrival: int
    header: _tensors_pb2.ChunkHeader
    in_place: bool
    pieces: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.LayoutPart]
    def __init__(self, session: _Optional[int] = ..., arrival: _Optional[int] = ..., header: _Optional[_Union[_tensors_pb2.ChunkHeader, _Mapping]] = ..., in_place: _Optional[bool] = ..., pieces: _Optional[_Iterable[_Union[_cluster_pb2.LayoutPart, _Mapping]]] = ...) -> None: ...

class SumNode(_message.Message):
    __slots__ = ("first", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class KeepPieces(_message.Message):
    __slots__ = ("job", "chunk", "arrivals")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    job: str
    chunk: int
    arrivals: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job: _Optional[str] = ..., chunk: _Optional[int] = ..., arrivals: _Optional[_Iterable[int]] = ...) -> None: ...

class DiscardPieces(_message.Message):
    __slots__ = ("job", "chunk", "arrivals")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    job: str
    chunk: int
    arrivals: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job: _Optional[str] = ..., chunk: _Optional[int] = ..., arrivals: _Optional[_Iterable[int]] = ...) -> None: ...

class KeepSum(_message.Message):
    __slots__ = ("job", "chunks", "lease", "node")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    job: str
    chunks: _containers.RepeatedScalarFieldContainer[int]
    lease: int
    node: SumNode
    def __init__(self, job: _Optional[str] = ..., chunks: _Optional[_Iterable[int]] = ..., lease: _Optional[int] = ..., node: _Optional[_Union[SumNode, _Mapping]] = ...) -> None: ...

class DropPieces(_message.Message):
    __slots__ = ("job", "lease")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    job: str
    lease: int
    def __init__(self, job: _Optional[str] = ..., lease: _Optional[int] = ...) -> None: ...

class DropSum(_message.Message):
    __slots__ = ("job", "chunks", "node")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    job: str
    chunks: _containers.RepeatedScalarFieldContainer[int]
    node: SumNode
    def __init__(self, job: _Optional[str] = ..., chunks: _Optional[_Iterable[int]] = ..., node: _Optional[_Union[SumNode, _Mapping]] = ...) -> None: ...

class MergeSums(_message.Message):
    __slots__ = ("job", "chunks", "left", "right", "parent")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    job: str
    chunks: _containers.RepeatedScalarFieldContainer[int]
    left: SumNode
    right: SumNode
    parent: SumNode
    def __init__(self, job: _Optional[str] = ..., chunks: _Optional[_Iterable[int]] = ..., left: _Optional[_Union[SumNode, _Mapping]] = ..., right: _Optional[_Union[SumNode, _Mapping]] = ..., parent: _Optional[_Union[SumNode, _Mapping]] = ...) -> None: ...

class FinishSum(_message.Message):
    __slots__ = ("job", "chunks", "node", "header")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    job: str
    chunks: _containers.RepeatedScalarFieldContainer[int]
    node: SumNode
    header: _tensors_pb2.ChunkHeader
    def __init__(self, job: _Optional[str] = ..., chunks: _Optional[_Iterable[int]] = ..., node: _Optional[_Union[SumNode, _Mapping]] = ..., header: _Optional[_Union[_tensors_pb2.ChunkHeader, _Mapping]] = ...) -> None: ...

class DropSums(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class StageChunks(_message.Message):
    __slots__ = ("job", "chunks", "initial")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    job: str
    chunks: _containers.RepeatedScalarFieldContainer[int]
    initial: bool
    def __init__(self, job: _Optional[str] = ..., chunks: _Optional[_Iterable[int]] = ..., initial: _Optional[bool] = ...) -> None: ...

class StagedChunks(_message.Message):
    __slots__ = ("job", "chunks")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    job: str
    chunks: _containers.RepeatedCompositeFieldContainer[StagedChunk]
    def __init__(self, job: _Optional[str] = ..., chunks: _Optional[_Iterable[_Union[StagedChunk, _Mapping]]] = ...) -> None: ...

class StagedChunk(_message.Message):
    __slots__ = ("chunk", "block_sums")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SUMS_FIELD_NUMBER: _ClassVar[int]
    chunk: int
    block_sums: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, chunk: _Optional[int] = ..., block_sums: _Optional[_Iterable[float]] = ...) -> None: ...

class UpdatePart(_message.Message):
    __slots__ = ("job", "epoch", "generation", "step", "applied", "grad_norm", "learning_rate", "clip", "beta1")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    BETA1_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    generation: int
    step: int
    applied: bool
    grad_norm: float
    learning_rate: float
    clip: float
    beta1: float
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., applied: _Optional[bool] = ..., grad_norm: _Optional[float] = ..., learning_rate: _Optional[float] = ..., clip: _Optional[float] = ..., beta1: _Optional[float] = ...) -> None: ...

class UpdatedPart(_message.Message):
    __slots__ = ("job", "step", "chunks")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    job: str
    step: int
    chunks: int
    def __init__(self, job: _Optional[str] = ..., step: _Optional[int] = ..., chunks: _Optional[int] = ...) -> None: ...

class MakeWeights(_message.Message):
    __slots__ = ("job", "epoch", "generation", "step")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    generation: int
    step: int
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class SendVersion(_message.Message):
    __slots__ = ("job", "session", "generation", "step", "parts")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    job: str
    session: int
    generation: int
    step: int
    parts: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.LayoutPart]
    def __init__(self, job: _Optional[str] = ..., session: _Optional[int] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[_cluster_pb2.LayoutPart, _Mapping]]] = ...) -> None: ...

class CopyPart(_message.Message):
    __slots__ = ("job", "copy")
    JOB_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    job: str
    copy: int
    def __init__(self, job: _Optional[str] = ..., copy: _Optional[int] = ...) -> None: ...

class CopiedPart(_message.Message):
    __slots__ = ("copy", "file", "reason", "job")
    COPY_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    copy: int
    file: _files_pb2.FileRef
    reason: str
    job: str
    def __init__(self, copy: _Optional[int] = ..., file: _Optional[_Union[_files_pb2.FileRef, _Mapping]] = ..., reason: _Optional[str] = ..., job: _Optional[str] = ...) -> None: ...

class DropCopy(_message.Message):
    __slots__ = ("copy", "job")
    COPY_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    copy: int
    job: str
    def __init__(self, copy: _Optional[int] = ..., job: _Optional[str] = ...) -> None: ...
