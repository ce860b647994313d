from protos import checks_pb2 as _checks_pb2
from protos import cluster_pb2 as _cluster_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    QUEUED: _ClassVar[JobState]
    RUNNING: _ClassVar[JobState]
    SUCCEEDED: _ClassVar[JobState]
    FAILED: _ClassVar[JobState]
    CANCELLED: _ClassVar[JobState]
    PAUSED: _ClassVar[JobState]

class PrunePart(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRUNE_PART_UNSPECIFIED: _ClassVar[PrunePart]
    WHOLE_JOB: _ClassVar[PrunePart]
    CHECKPOINTS: _ClassVar[PrunePart]
    LOG: _ClassVar[PrunePart]
JOB_STATE_UNSPECIFIED: JobState
QUEUED: JobState
RUNNING: JobState
SUCCEEDED: JobState
FAILED: JobState
CANCELLED: JobState
PAUSED: JobState
PRUNE_PART_UNSPECIFIED: PrunePart
WHOLE_JOB: PrunePart
CHECKPOINTS: PrunePart
LOG: PrunePart

class SubmitRequest(_message.Message):
    __slots__ = ("name", "spec_json", "spec_crc32c", "request_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    SPEC_CRC32C_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    spec_json: str
    spec_crc32c: int
    request_id: str
    def __init__(self, name: _Optional[str] = ..., spec_json: _Optional[str] = ..., spec_crc32c: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class ContinueRequest(_message.Message):
    __slots__ = ("job", "step", "steps", "total_steps", "request_id", "own_crc32c")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OWN_CRC32C_FIELD_NUMBER: _ClassVar[int]
    job: str
    step: int
    steps: int
    total_steps: int
    request_id: str
    own_crc32c: int
    def __init__(self, job: _Optional[str] = ..., step: _Optional[int] = ..., steps: _Optional[int] = ..., total_steps: _Optional[int] = ..., request_id: _Optional[str] = ..., own_crc32c: _Optional[int] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("page_token", "limit", "newest_first", "states", "owner", "name")
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    page_token: str
    limit: int
    newest_first: bool
    states: _containers.RepeatedScalarFieldContainer[JobState]
    owner: str
    name: str
    def __init__(self, page_token: _Optional[str] = ..., limit: _Optional[int] = ..., newest_first: _Optional[bool] = ..., states: _Optional[_Iterable[_Union[JobState, str]]] = ..., owner: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("jobs", "next_page_token")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class JobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("job", "spec_json", "spec_crc32c")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    SPEC_CRC32C_FIELD_NUMBER: _ClassVar[int]
    job: str
    spec_json: str
    spec_crc32c: int
    def __init__(self, job: _Optional[str] = ..., spec_json: _Optional[str] = ..., spec_crc32c: _Optional[int] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("job", "now")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    job: str
    now: bool
    def __init__(self, job: _Optional[str] = ..., now: _Optional[bool] = ...) -> None: ...

class PriorityRequest(_message.Message):
    __slots__ = ("job", "priority")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    job: str
    priority: int
    def __init__(self, job: _Optional[str] = ..., priority: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "name", "state", "phase", "detail", "submitted_seconds", "started_seconds", "ended_seconds", "generation", "step", "steps", "loss", "validation_loss", "validation_step", "checkpoint", "checkpoint_step", "model_sha256", "tokens_per_second", "skipped", "excluded", "trusted_steps", "owner", "code_changes", "starts", "crash", "step_seconds", "evaluation_seconds", "seconds_left", "start", "parameters", "flops_per_token", "mfu", "samples_per_second", "claims", "void_generation", "workers", "waiting", "worker_seconds", "evaluated_batches", "evaluation_batches", "advice", "priority", "pausing", "position", "estimated_start_seconds", "min_workers", "max_workers")
    class TrustedStepsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class WorkerSecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STARTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ENDED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_LOSS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    TRUSTED_STEPS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CODE_CHANGES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    CRASH_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    FLOPS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MFU_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    VOID_GENERATION_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WORKER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_BATCHES_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PAUSING_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_START_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MIN_WORKERS_FIELD_NUMBER: _ClassVar[int]
    MAX_WORKERS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    state: JobState
    phase: str
    detail: str
    submitted_seconds: float
    started_seconds: float
    ended_seconds: float
    generation: int
    step: int
    steps: int
    loss: float
    validation_loss: float
    validation_step: int
    checkpoint: str
    checkpoint_step: int
    model_sha256: str
    tokens_per_second: float
    skipped: str
    excluded: _containers.RepeatedCompositeFieldContainer[Exclusion]
    trusted_steps: _containers.ScalarMap[str, int]
    owner: str
    code_changes: _containers.RepeatedCompositeFieldContainer[CodeChange]
    starts: int
    crash: Crash
    step_seconds: float
    evaluation_seconds: float
    seconds_left: float
    start: Start
    parameters: int
    flops_per_token: int
    mfu: float
    samples_per_second: float
    claims: _containers.RepeatedCompositeFieldContainer[Claim]
    void_generation: int
    workers: int
    waiting: str
    worker_seconds: _containers.ScalarMap[str, float]
    evaluated_batches: int
    evaluation_batches: int
    advice: str
    priority: int
    pausing: bool
    position: int
    estimated_start_seconds: float
    min_workers: int
    max_workers: int
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[_Union[JobState, str]] = ..., phase: _Optional[str] = ..., detail: _Optional[str] = ..., submitted_seconds: _Optional[float] = ..., started_seconds: _Optional[float] = ..., ended_seconds: _Optional[float] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., steps: _Optional[int] = ..., loss: _Optional[float] = ..., validation_loss: _Optional[float] = ..., validation_step: _Optional[int] = ..., checkpoint: _Optional[str] = ..., checkpoint_step: _Optional[int] = ..., model_sha256: _Optional[str] = ..., tokens_per_second: _Optional[float] = ..., skipped: _Optional[str] = ..., excluded: _Optional[_Iterable[_Union[Exclusion, _Mapping]]] = ..., trusted_steps: _Optional[_Mapping[str, int]] = ..., owner: _Optional[str] = ..., code_changes: _Optional[_Iterable[_Union[CodeChange, _Mapping]]] = ..., starts: _Optional[int] = ..., crash: _Optional[_Union[Crash, _Mapping]] = ..., step_seconds: _Optional[float] = ..., evaluation_seconds: _Optional[float] = ..., seconds_left: _Optional[float] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., parameters: _Optional[int] = ..., flops_per_token: _Optional[int] = ..., mfu: _Optional[float] = ..., samples_per_second: _Optional[float] = ..., claims: _Optional[_Iterable[_Union[Claim, _Mapping]]] = ..., void_generation: _Optional[int] = ..., workers: _Optional[int] = ..., waiting: _Optional[str] = ..., worker_seconds: _Optional[_Mapping[str, float]] = ..., evaluated_batches: _Optional[int] = ..., evaluation_batches: _Optional[int] = ..., advice: _Optional[str] = ..., priority: _Optional[int] = ..., pausing: _Optional[bool] = ..., position: _Optional[int] = ..., estimated_start_seconds: _Optional[float] = ..., min_workers: _Optional[int] = ..., max_workers: _Optional[int] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("fingerprint", "layout_hash", "elements", "claimants", "bound", "contends", "evaluation_batches")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    CLAIMANTS_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    CONTENDS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_BATCHES_FIELD_NUMBER: _ClassVar[int]
    fingerprint: _containers.ScalarMap[str, str]
    layout_hash: str
    elements: int
    claimants: _containers.RepeatedCompositeFieldContainer[Claimant]
    bound: bool
    contends: bool
    evaluation_batches: int
    def __init__(self, fingerprint: _Optional[_Mapping[str, str]] = ..., layout_hash: _Optional[str] = ..., elements: _Optional[int] = ..., claimants: _Optional[_Iterable[_Union[Claimant, _Mapping]]] = ..., bound: _Optional[bool] = ..., contends: _Optional[bool] = ..., evaluation_batches: _Optional[int] = ...) -> None: ...

class Claimant(_message.Message):
    __slots__ = ("worker", "voice")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    voice: str
    def __init__(self, worker: _Optional[str] = ..., voice: _Optional[str] = ...) -> None: ...

class TrustRequest(_message.Message):
    __slots__ = ("job", "worker")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: str
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[str] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("job", "step", "first_step")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    step: int
    first_step: int
    def __init__(self, job: _Optional[str] = ..., step: _Optional[int] = ..., first_step: _Optional[int] = ...) -> None: ...

class CodeChange(_message.Message):
    __slots__ = ("before", "after", "generation", "step")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    before: str
    after: str
    generation: int
    step: int
    def __init__(self, before: _Optional[str] = ..., after: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Crash(_message.Message):
    __slots__ = ("count", "step", "reason")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    count: int
    step: int
    reason: str
    def __init__(self, count: _Optional[int] = ..., step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Exclusion(_message.Message):
    __slots__ = ("worker", "generation", "step", "reason", "trusted_step")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TRUSTED_STEP_FIELD_NUMBER: _ClassVar[int]
    worker: str
    generation: int
    step: int
    reason: str
    trusted_step: int
    def __init__(self, worker: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., reason: _Optional[str] = ..., trusted_step: _Optional[int] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("job", "seconds", "kind", "text", "grad_norm", "learning_rate", "step_seconds", "split", "waited_for")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    WAITED_FOR_FIELD_NUMBER: _ClassVar[int]
    job: Job
    seconds: float
    kind: str
    text: str
    grad_norm: float
    learning_rate: float
    step_seconds: float
    split: StepSplit
    waited_for: str
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., seconds: _Optional[float] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ..., grad_norm: _Optional[float] = ..., learning_rate: _Optional[float] = ..., step_seconds: _Optional[float] = ..., split: _Optional[_Union[StepSplit, _Mapping]] = ..., waited_for: _Optional[str] = ...) -> None: ...

class StepSplit(_message.Message):
    __slots__ = ("compute_seconds", "wire_seconds", "update_seconds", "wait_seconds")
    COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WIRE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    compute_seconds: float
    wire_seconds: float
    update_seconds: float
    wait_seconds: float
    def __init__(self, compute_seconds: _Optional[float] = ..., wire_seconds: _Optional[float] = ..., update_seconds: _Optional[float] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("job", "follow", "tail", "timing", "batched")
    JOB_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    BATCHED_FIELD_NUMBER: _ClassVar[int]
    job: str
    follow: bool
    tail: int
    timing: bool
    batched: bool
    def __init__(self, job: _Optional[str] = ..., follow: _Optional[bool] = ..., tail: _Optional[int] = ..., timing: _Optional[bool] = ..., batched: _Optional[bool] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("seconds", "text", "more_seconds", "more_texts")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MORE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MORE_TEXTS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    text: str
    more_seconds: _containers.RepeatedScalarFieldContainer[float]
    more_texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, seconds: _Optional[float] = ..., text: _Optional[str] = ..., more_seconds: _Optional[_Iterable[float]] = ..., more_texts: _Optional[_Iterable[str]] = ...) -> None: ...

class MetricsRequest(_message.Message):
    __slots__ = ("job", "columns", "first_step", "last_step", "points")
    JOB_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    job: str
    columns: _containers.RepeatedScalarFieldContainer[str]
    first_step: int
    last_step: int
    points: int
    def __init__(self, job: _Optional[str] = ..., columns: _Optional[_Iterable[str]] = ..., first_step: _Optional[int] = ..., last_step: _Optional[int] = ..., points: _Optional[int] = ...) -> None: ...

class MetricsRows(_message.Message):
    __slots__ = ("columns", "steps_per_row")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_ROW_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[MetricsColumn]
    steps_per_row: int
    def __init__(self, columns: _Optional[_Iterable[_Union[MetricsColumn, _Mapping]]] = ..., steps_per_row: _Optional[int] = ...) -> None: ...

class MetricsColumn(_message.Message):
    __slots__ = ("name", "kind", "values", "texts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    values: bytes
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., values: _Optional[bytes] = ..., texts: _Optional[_Iterable[str]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterStatus(_message.Message):
    __slots__ = ("epoch", "tiers", "optimizer", "workers", "waiting", "shards", "waits", "worker_seconds", "leader", "standbys", "running_jobs", "job_waits", "version", "optimizer_connection")
    class WorkerSecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    WORKER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    STANDBYS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_JOBS_FIELD_NUMBER: _ClassVar[int]
    JOB_WAITS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_CONNECTION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    tiers: int
    optimizer: str
    workers: _containers.RepeatedCompositeFieldContainer[Member]
    waiting: str
    shards: _containers.RepeatedCompositeFieldContainer[ShardStatus]
    waits: _containers.RepeatedCompositeFieldContainer[Wait]
    worker_seconds: _containers.ScalarMap[str, float]
    leader: str
    standbys: _containers.RepeatedCompositeFieldContainer[Standby]
    running_jobs: _containers.RepeatedScalarFieldContainer[str]
    job_waits: _containers.RepeatedScalarFieldContainer[str]
    version: str
    optimizer_connection: Connection
    def __init__(self, epoch: _Optional[int] = ..., tiers: _Optional[int] = ..., optimizer: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., waiting: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[ShardStatus, _Mapping]]] = ..., waits: _Optional[_Iterable[_Union[Wait, _Mapping]]] = ..., worker_seconds: _Optional[_Mapping[str, float]] = ..., leader: _Optional[str] = ..., standbys: _Optional[_Iterable[_Union[Standby, _Mapping]]] = ..., running_jobs: _Optional[_Iterable[str]] = ..., job_waits: _Optional[_Iterable[str]] = ..., version: _Optional[str] = ..., optimizer_connection: _Optional[_Union[Connection, _Mapping]] = ...) -> None: ...

class Connection(_message.Message):
    __slots__ = ("host", "version", "round_trip_seconds", "sent_bytes_per_second", "received_bytes_per_second")
    HOST_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    host: str
    version: str
    round_trip_seconds: float
    sent_bytes_per_second: float
    received_bytes_per_second: float
    def __init__(self, host: _Optional[str] = ..., version: _Optional[str] = ..., round_trip_seconds: _Optional[float] = ..., sent_bytes_per_second: _Optional[float] = ..., received_bytes_per_second: _Optional[float] = ...) -> None: ...

class Standby(_message.Message):
    __slots__ = ("name", "seconds_since_heard")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SINCE_HEARD_FIELD_NUMBER: _ClassVar[int]
    name: str
    seconds_since_heard: float
    def __init__(self, name: _Optional[str] = ..., seconds_since_heard: _Optional[float] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("role", "peer", "job", "step", "bucket", "what", "seconds")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    role: str
    peer: str
    job: str
    step: int
    bucket: int
    what: str
    seconds: float
    def __init__(self, role: _Optional[str] = ..., peer: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., bucket: _Optional[int] = ..., what: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class ShardStatus(_message.Message):
    __slots__ = ("index", "address", "name", "detail", "seconds_since_heard", "connection")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SINCE_HEARD_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    index: int
    address: str
    name: str
    detail: str
    seconds_since_heard: float
    connection: Connection
    def __init__(self, index: _Optional[int] = ..., address: _Optional[str] = ..., name: _Optional[str] = ..., detail: _Optional[str] = ..., seconds_since_heard: _Optional[float] = ..., connection: _Optional[_Union[Connection, _Mapping]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "incarnation", "state", "detail", "generation", "step", "seconds_since_heard", "micro_batches_per_second", "row", "first_stage", "stages", "activity", "seconds_since_speed", "job", "connection")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SINCE_HEARD_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    FIRST_STAGE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SINCE_SPEED_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: str
    state: str
    detail: str
    generation: int
    step: int
    seconds_since_heard: float
    micro_batches_per_second: float
    row: int
    first_stage: int
    stages: int
    activity: str
    seconds_since_speed: float
    job: str
    connection: Connection
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[str] = ..., state: _Optional[str] = ..., detail: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., seconds_since_heard: _Optional[float] = ..., micro_batches_per_second: _Optional[float] = ..., row: _Optional[int] = ..., first_stage: _Optional[int] = ..., stages: _Optional[int] = ..., activity: _Optional[str] = ..., seconds_since_speed: _Optional[float] = ..., job: _Optional[str] = ..., connection: _Optional[_Union[Connection, _Mapping]] = ...) -> None: ...

class PruneRequest(_message.Message):
    __slots__ = ("jobs", "older_than_seconds", "keep", "max_bytes", "part", "dry_run")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    OLDER_THAN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    older_than_seconds: float
    keep: int
    max_bytes: int
    part: PrunePart
    dry_run: bool
    def __init__(self, jobs: _Optional[_Iterable[str]] = ..., older_than_seconds: _Optional[float] = ..., keep: _Optional[int] = ..., max_bytes: _Optional[int] = ..., part: _Optional[_Union[PrunePart, str]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class PrunedJob(_message.Message):
    __slots__ = ("job", "bytes", "checkpoints", "kept")
    JOB_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    job: Job
    bytes: int
    checkpoints: int
    kept: str
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., bytes: _Optional[int] = ..., checkpoints: _Optional[int] = ..., kept: _Optional[str] = ...) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ("rows", "columns", "backend")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    backend: str
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ..., backend: _Optional[str] = ...) -> None: ...

class CheckResult(_message.Message):
    __slots__ = ("plan", "mesh", "link")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    MESH_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    plan: CheckPlan
    mesh: CheckedMesh
    link: CheckedLink
    def __init__(self, plan: _Optional[_Union[CheckPlan, _Mapping]] = ..., mesh: _Optional[_Union[CheckedMesh, _Mapping]] = ..., link: _Optional[_Union[CheckedLink, _Mapping]] = ...) -> None: ...

class CheckPlan(_message.Message):
    __slots__ = ("meshes", "links", "busy")
    MESHES_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    meshes: int
    links: int
    busy: int
    def __init__(self, meshes: _Optional[int] = ..., links: _Optional[int] = ..., busy: _Optional[int] = ...) -> None: ...

class CheckedMesh(_message.Message):
    __slots__ = ("name", "report")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    name: str
    report: _checks_pb2.MeshReport
    def __init__(self, name: _Optional[str] = ..., report: _Optional[_Union[_checks_pb2.MeshReport, _Mapping]] = ...) -> None: ...

class CheckedLink(_message.Message):
    __slots__ = ("name", "role", "peer", "peer_role", "report")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PEER_ROLE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    peer: str
    peer_role: str
    report: _checks_pb2.LinkReport
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., peer: _Optional[str] = ..., peer_role: _Optional[str] = ..., report: _Optional[_Union[_checks_pb2.LinkReport, _Mapping]] = ...) -> None: ...
