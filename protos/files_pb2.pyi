from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FileRef(_message.Message):
    __slots__ = ("sha256", "size")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    size: int
    def __init__(self, sha256: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class MissingRequest(_message.Message):
    __slots__ = ("files", "own_crc32c")
    FILES_FIELD_NUMBER: _ClassVar[int]
    OWN_CRC32C_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[FileRef]
    own_crc32c: int
    def __init__(self, files: _Optional[_Iterable[_Union[FileRef, _Mapping]]] = ..., own_crc32c: _Optional[int] = ...) -> None: ...

class MissingFile(_message.Message):
    __slots__ = ("sha256", "offset")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    offset: int
    def __init__(self, sha256: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class MissingReply(_message.Message):
    __slots__ = ("missing", "own_crc32c")
    MISSING_FIELD_NUMBER: _ClassVar[int]
    OWN_CRC32C_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedCompositeFieldContainer[MissingFile]
    own_crc32c: int
    def __init__(self, missing: _Optional[_Iterable[_Union[MissingFile, _Mapping]]] = ..., own_crc32c: _Optional[int] = ...) -> None: ...

class FilePiece(_message.Message):
    __slots__ = ("file", "offset", "crc32c", "data")
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file: FileRef
    offset: int
    crc32c: int
    data: bytes
    def __init__(self, file: _Optional[_Union[FileRef, _Mapping]] = ..., offset: _Optional[int] = ..., crc32c: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReadFileRequest(_message.Message):
    __slots__ = ("sha256", "offset", "length", "job", "step", "own_crc32c")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    OWN_CRC32C_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    offset: int
    length: int
    job: str
    step: int
    own_crc32c: int
    def __init__(self, sha256: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., own_crc32c: _Optional[int] = ...) -> None: ...
