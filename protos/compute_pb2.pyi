from protos import checks_pb2 as _checks_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ToProcess(_message.Message):
    __slots__ = ("call", "open_job", "use_memory", "load_weights", "make_weights", "describe_model", "compute_gradients", "evaluate_batch", "check_mesh", "close_job", "answer", "refused", "finished")
    CALL_FIELD_NUMBER: _ClassVar[int]
    OPEN_JOB_FIELD_NUMBER: _ClassVar[int]
    USE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    LOAD_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    MAKE_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_MODEL_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_BATCH_FIELD_NUMBER: _ClassVar[int]
    CHECK_MESH_FIELD_NUMBER: _ClassVar[int]
    CLOSE_JOB_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    call: int
    open_job: OpenJob
    use_memory: UseMemory
    load_weights: LoadWeights
    make_weights: MakeWeights
    describe_model: DescribeModel
    compute_gradients: ComputeGradients
    evaluate_batch: EvaluateBatch
    check_mesh: CheckMesh
    close_job: CloseJob
    answer: Answer
    refused: Refused
    finished: Finished
    def __init__(self, call: _Optional[int] = ..., open_job: _Optional[_Union[OpenJob, _Mapping]] = ..., use_memory: _Optional[_Union[UseMemory, _Mapping]] = ..., load_weights: _Optional[_Union[LoadWeights, _Mapping]] = ..., make_weights: _Optional[_Union[MakeWeights, _Mapping]] = ..., describe_model: _Optional[_Union[DescribeModel, _Mapping]] = ..., compute_gradients: _Optional[_Union[ComputeGradients, _Mapping]] = ..., evaluate_batch: _Optional[_Union[EvaluateBatch, _Mapping]] = ..., check_mesh: _Optional[_Union[CheckMesh, _Mapping]] = ..., close_job: _Optional[_Union[CloseJob, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class FromProcess(_message.Message):
    __slots__ = ("call", "hello", "mesh_opened", "gradient_ready", "gradient_done", "non_finite", "pass_ended", "memory_measured", "file_read", "need_weights", "begin_gradient", "send_array", "take_array", "done", "job_built", "model_described", "gradients_computed", "batch_evaluated", "mesh_checked", "failed")
    CALL_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    MESH_OPENED_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_READY_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_DONE_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    PASS_ENDED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MEASURED_FIELD_NUMBER: _ClassVar[int]
    FILE_READ_FIELD_NUMBER: _ClassVar[int]
    NEED_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    SEND_ARRAY_FIELD_NUMBER: _ClassVar[int]
    TAKE_ARRAY_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    JOB_BUILT_FIELD_NUMBER: _ClassVar[int]
    MODEL_DESCRIBED_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    BATCH_EVALUATED_FIELD_NUMBER: _ClassVar[int]
    MESH_CHECKED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    call: int
    hello: Hello
    mesh_opened: MeshOpened
    gradient_ready: GradientReady
    gradient_done: GradientDone
    non_finite: NonFinite
    pass_ended: PassEnded
    memory_measured: MemoryMeasured
    file_read: FileRead
    need_weights: NeedWeights
    begin_gradient: BeginGradient
    send_array: SendArray
    take_array: TakeArray
    done: Done
    job_built: JobBuilt
    model_described: ModelDescribed
    gradients_computed: GradientsComputed
    batch_evaluated: BatchEvaluated
    mesh_checked: MeshChecked
    failed: Failed
    def __init__(self, call: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., mesh_opened: _Optional[_Union[MeshOpened, _Mapping]] = ..., gradient_ready: _Optional[_Union[GradientReady, _Mapping]] = ..., gradient_done: _Optional[_Union[GradientDone, _Mapping]] = ..., non_finite: _Optional[_Union[NonFinite, _Mapping]] = ..., pass_ended: _Optional[_Union[PassEnded, _Mapping]] = ..., memory_measured: _Optional[_Union[MemoryMeasured, _Mapping]] = ..., file_read: _Optional[_Union[FileRead, _Mapping]] = ..., need_weights: _Optional[_Union[NeedWeights, _Mapping]] = ..., begin_gradient: _Optional[_Union[BeginGradient, _Mapping]] = ..., send_array: _Optional[_Union[SendArray, _Mapping]] = ..., take_array: _Optional[_Union[TakeArray, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., job_built: _Optional[_Union[JobBuilt, _Mapping]] = ..., model_described: _Optional[_Union[ModelDescribed, _Mapping]] = ..., gradients_computed: _Optional[_Union[GradientsComputed, _Mapping]] = ..., batch_evaluated: _Optional[_Union[BatchEvaluated, _Mapping]] = ..., mesh_checked: _Optional[_Union[MeshChecked, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "job", "name")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    version: int
    job: str
    name: str
    def __init__(self, version: _Optional[int] = ..., job: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "field", "value", "expected", "fix")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    reason: str
    field: str
    value: str
    expected: str
    fix: str
    def __init__(self, reason: _Optional[str] = ..., field: _Optional[str] = ..., value: _Optional[str] = ..., expected: _Optional[str] = ..., fix: _Optional[str] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenJob(_message.Message):
    __slots__ = ("job", "spec_json", "places", "first_stage", "stages", "data_dir", "allowed_models", "code_folder")
    class PlacesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    FIRST_STAGE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    DATA_DIR_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_MODELS_FIELD_NUMBER: _ClassVar[int]
    CODE_FOLDER_FIELD_NUMBER: _ClassVar[int]
    job: str
    spec_json: str
    places: _containers.ScalarMap[str, str]
    first_stage: int
    stages: int
    data_dir: str
    allowed_models: _containers.RepeatedScalarFieldContainer[str]
    code_folder: str
    def __init__(self, job: _Optional[str] = ..., spec_json: _Optional[str] = ..., places: _Optional[_Mapping[str, str]] = ..., first_stage: _Optional[int] = ..., stages: _Optional[int] = ..., data_dir: _Optional[str] = ..., allowed_models: _Optional[_Iterable[str]] = ..., code_folder: _Optional[str] = ...) -> None: ...

class MeshOpened(_message.Message):
    __slots__ = ("rows", "columns", "backend", "arch", "board", "cores", "seconds")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    ARCH_FIELD_NUMBER: _ClassVar[int]
    BOARD_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    backend: str
    arch: str
    board: str
    cores: int
    seconds: float
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ..., backend: _Optional[str] = ..., arch: _Optional[str] = ..., board: _Optional[str] = ..., cores: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class FileRead(_message.Message):
    __slots__ = ("path", "read_bytes", "size_bytes")
    PATH_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    path: str
    read_bytes: int
    size_bytes: int
    def __init__(self, path: _Optional[str] = ..., read_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class JobBuilt(_message.Message):
    __slots__ = ("layout_json", "ranges", "all_ranges", "loaded", "element_bytes", "activation_elements", "tied_elements", "evaluation_batches", "tokens_per_micro_batch", "vocabulary", "fingerprint")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LAYOUT_JSON_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ALL_RANGES_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    TIED_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_BATCHES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    layout_json: str
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    all_ranges: int
    loaded: _containers.RepeatedScalarFieldContainer[int]
    element_bytes: int
    activation_elements: int
    tied_elements: int
    evaluation_batches: int
    tokens_per_micro_batch: int
    vocabulary: int
    fingerprint: _containers.ScalarMap[str, str]
    def __init__(self, layout_json: _Optional[str] = ..., ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., all_ranges: _Optional[int] = ..., loaded: _Optional[_Iterable[int]] = ..., element_bytes: _Optional[int] = ..., activation_elements: _Optional[int] = ..., tied_elements: _Optional[int] = ..., evaluation_batches: _Optional[int] = ..., tokens_per_micro_batch: _Optional[int] = ..., vocabulary: _Optional[int] = ..., fingerprint: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("index", "start", "stop")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    index: int
    start: int
    stop: int
    def __init__(self, index: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class UseMemory(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LoadWeights(_message.Message):
    __slots__ = ("is_new", "entries")
    IS_NEW_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    is_new: bool
    entries: int
    def __init__(self, is_new: _Optional[bool] = ..., entries: _Optional[int] = ...) -> None: ...

class MakeWeights(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeModel(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelDescribed(_message.Message):
    __slots__ = ("files",)
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.ScalarMap[str, bytes]
    def __init__(self, files: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class ComputeGradients(_message.Message):
    __slots__ = ("step", "first", "count")
    STEP_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    step: int
    first: int
    count: int
    def __init__(self, step: _Optional[int] = ..., first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class NeedWeights(_message.Message):
    __slots__ = ("entry",)
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    entry: int
    def __init__(self, entry: _Optional[int] = ...) -> None: ...

class BeginGradient(_message.Message):
    __slots__ = ("range", "micro_batch")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    range: int
    micro_batch: int
    def __init__(self, range: _Optional[int] = ..., micro_batch: _Optional[int] = ...) -> None: ...

class GradientReady(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class GradientDone(_message.Message):
    __slots__ = ("loss", "count", "non_finite")
    LOSS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    loss: float
    count: int
    non_finite: str
    def __init__(self, loss: _Optional[float] = ..., count: _Optional[int] = ..., non_finite: _Optional[str] = ...) -> None: ...

class NonFinite(_message.Message):
    __slots__ = ("micro_batch", "parameter")
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    micro_batch: int
    parameter: str
    def __init__(self, micro_batch: _Optional[int] = ..., parameter: _Optional[str] = ...) -> None: ...

class PassEnded(_message.Message):
    __slots__ = ("is_backward", "began_seconds", "ended_seconds", "range", "micro_batch")
    IS_BACKWARD_FIELD_NUMBER: _ClassVar[int]
    BEGAN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ENDED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    is_backward: bool
    began_seconds: float
    ended_seconds: float
    range: int
    micro_batch: int
    def __init__(self, is_backward: _Optional[bool] = ..., began_seconds: _Optional[float] = ..., ended_seconds: _Optional[float] = ..., range: _Optional[int] = ..., micro_batch: _Optional[int] = ...) -> None: ...

class MemoryMeasured(_message.Message):
    __slots__ = ("phases",)
    class Phase(_message.Message):
        __slots__ = ("name", "device_bytes", "device_peak_bytes", "host_bytes")
        NAME_FIELD_NUMBER: _ClassVar[int]
        DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
        DEVICE_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
        HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
        name: str
        device_bytes: int
        device_peak_bytes: int
        host_bytes: int
        def __init__(self, name: _Optional[str] = ..., device_bytes: _Optional[int] = ..., device_peak_bytes: _Optional[int] = ..., host_bytes: _Optional[int] = ...) -> None: ...
    PHASES_FIELD_NUMBER: _ClassVar[int]
    phases: _containers.RepeatedCompositeFieldContainer[MemoryMeasured.Phase]
    def __init__(self, phases: _Optional[_Iterable[_Union[MemoryMeasured.Phase, _Mapping]]] = ...) -> None: ...

class SendArray(_message.Message):
    __slots__ = ("to", "shape", "element_bytes")
    TO_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    to: Place
    shape: _containers.RepeatedScalarFieldContainer[int]
    element_bytes: int
    def __init__(self, to: _Optional[_Union[Place, _Mapping]] = ..., shape: _Optional[_Iterable[int]] = ..., element_bytes: _Optional[int] = ...) -> None: ...

class TakeArray(_message.Message):
    __slots__ = ("to",)
    TO_FIELD_NUMBER: _ClassVar[int]
    to: Place
    def __init__(self, to: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("is_tied", "is_backward", "range", "micro_batch")
    IS_TIED_FIELD_NUMBER: _ClassVar[int]
    IS_BACKWARD_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    is_tied: bool
    is_backward: bool
    range: int
    micro_batch: int
    def __init__(self, is_tied: _Optional[bool] = ..., is_backward: _Optional[bool] = ..., range: _Optional[int] = ..., micro_batch: _Optional[int] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("abandon", "shape", "element_bytes")
    ABANDON_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    abandon: bool
    shape: _containers.RepeatedScalarFieldContainer[int]
    element_bytes: int
    def __init__(self, abandon: _Optional[bool] = ..., shape: _Optional[_Iterable[int]] = ..., element_bytes: _Optional[int] = ...) -> None: ...

class GradientsComputed(_message.Message):
    __slots__ = ("activation_bytes",)
    class ActivationBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    ACTIVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    activation_bytes: _containers.ScalarMap[int, int]
    def __init__(self, activation_bytes: _Optional[_Mapping[int, int]] = ...) -> None: ...

class EvaluateBatch(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: int
    def __init__(self, index: _Optional[int] = ...) -> None: ...

class BatchEvaluated(_message.Message):
    __slots__ = ("loss", "rows")
    LOSS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    loss: float
    rows: int
    def __init__(self, loss: _Optional[float] = ..., rows: _Optional[int] = ...) -> None: ...

class CheckMesh(_message.Message):
    __slots__ = ("rows", "columns", "backend")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    backend: str
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ..., backend: _Optional[str] = ...) -> None: ...

class MeshChecked(_message.Message):
    __slots__ = ("report",)
    REPORT_FIELD_NUMBER: _ClassVar[int]
    report: _checks_pb2.MeshReport
    def __init__(self, report: _Optional[_Union[_checks_pb2.MeshReport, _Mapping]] = ...) -> None: ...

class CloseJob(_message.Message):
    __slots__ = ("keep_mesh",)
    KEEP_MESH_FIELD_NUMBER: _ClassVar[int]
    keep_mesh: bool
    def __init__(self, keep_mesh: _Optional[bool] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Failed(_message.Message):
    __slots__ = ("kind", "reason", "path", "inode", "array_kind")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Failed.Kind]
        ABANDONED: _ClassVar[Failed.Kind]
        UNFIT: _ClassVar[Failed.Kind]
        MEMORY: _ClassVar[Failed.Kind]
        DAMAGED_FILE: _ClassVar[Failed.Kind]
        WRONG_ARRAY: _ClassVar[Failed.Kind]
        OTHER_PROCESS: _ClassVar[Failed.Kind]
    KIND_UNSPECIFIED: Failed.Kind
    ABANDONED: Failed.Kind
    UNFIT: Failed.Kind
    MEMORY: Failed.Kind
    DAMAGED_FILE: Failed.Kind
    WRONG_ARRAY: Failed.Kind
    OTHER_PROCESS: Failed.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    INODE_FIELD_NUMBER: _ClassVar[int]
    ARRAY_KIND_FIELD_NUMBER: _ClassVar[int]
    kind: Failed.Kind
    reason: str
    path: str
    inode: int
    array_kind: str
    def __init__(self, kind: _Optional[_Union[Failed.Kind, str]] = ..., reason: _Optional[str] = ..., path: _Optional[str] = ..., inode: _Optional[int] = ..., array_kind: _Optional[str] = ...) -> None: ...
