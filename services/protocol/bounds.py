"""The bound of every field of every message, checked where a message is made; so none outgrows what a peer receives.

A received message is checked too (`check_received`), since what a peer says is copied into other messages: its texts
for people are cut by `plain_text.py`, everything else that is too long is refused.

A text for people that is too long is cut. Anything else that is too long raises MessageTooLarge, which names the
message, the field and the job, and the job fails with it: sending it again would fail again.
`tests/services/protocol/test_bounds.py` computes the largest size of every message from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from services.caps import MOST_RUNNING_JOBS
from services.errors import Failed
from services.printable import FAILURE_CHARACTERS, LINE_CHARACTERS, printable
from services.protocol.file_refs import MAX_PIECE_BYTES
from services.protocol.non_finite import MAX_REPORTED_MICRO_BATCHES
from services.protocol.plain_text import NAME_CHARACTERS

MESSAGE_LIMIT_BYTES = 4 * 1024 * 1024
"""Longest message sent or received, without its 5-byte gRPC prefix."""
MAX_CHUNKS = 1 << 21
"""Maximum number of chunks of a layout, which has at most 2^40 elements."""
MAX_RUNS = 1024
"""Maximum number of ranges that name chunks; where there were more, they are joined, and name further chunks."""
MAX_RUN_PIECES = 64
"""Maximum number of chunks, or of their pieces, that one order to a plane or one of its reports is about."""
MAX_MICRO_BATCHES = 1 << 16
"""Maximum number of micro-batches of a step."""
MAX_LEASE_BATCHES = 1 << 16
"""Maximum number of held-out batches that one lease evaluates."""
MAX_WORKERS = 1024
"""Maximum number of workers that are connected to an aggregator."""
MAX_WAITS = 256
"""Maximum number of waits in a Status, the longest first."""
MAX_JOB_WAITS = 64
"""Maximum number of running jobs of which a Status says for what they wait."""
MAX_SHARDS = 256
"""Maximum number of shards of an aggregator."""
MAX_STAGES = 1 << 10
"""Maximum number of stages of a pipeline."""
MAX_PARTS = 1 << 12
"""Maximum number of parts of a layout that a worker has: one for each of its ranges, and those for tied embeddings."""
MAX_PAGE_BYTES = 3 * 1024 * 1024
"""Maximum size of a list that is sent in pages or batches; its maker begins another message there."""
MAX_NAMED_JOBS = 1000
"""Maximum number of jobs that a request names."""
MAX_NAMED_STEPS = 4096
"""Maximum number of checkpoints that an order to remove some names."""
MAX_HOST_BYTES = 64
"""Maximum size of the address of a peer's host in a Status."""
MAX_ROWS = 4096
"""Maximum number of rows in a part of a job's history."""
LOG_LINE_CHARACTERS = 1000
"""Longest line of a job's log, in characters."""
MOST_BATCHED_LINES = 256
"""Maximum number of lines of a log that follow the first one of a message."""
PRINTED_LINE_CHARACTERS = 500
"""Longest line that a job's code prints, in characters."""
MOST_PRINTED_LINES = 64
"""Maximum number of such lines in a message."""
PRINTED_LINES_A_SECOND, PRINTED_BURST_LINES = 16, 512
"""Lines that a worker's code may print: so many a second, and so many at once, enough for tracebacks of all threads."""

_MAX_UTF8_BYTES = 4  # of one character
_SENDER_CHARACTERS = 60  # of a sender's name in an error


@dataclass(frozen=True)
class Bound:
    """Bound of a field.

    Attributes:
        bytes: largest size of a text, or of each key, value or element, in bytes of UTF-8.
        count: largest number of elements.
        total: largest size of all elements together, in bytes, where their maker begins another message.
        cut_characters: length in characters to which a longer text for people is cut; 0: it is refused.
        by_receiver: whether the receiver of a request checks the field itself, with an error and a metric of its own.
    """

    bytes: int = 0
    count: int = 0
    total: int = 0
    cut_characters: int = 0
    by_receiver: bool = False


def _text(characters: int) -> Bound:
    return Bound(bytes=_MAX_UTF8_BYTES * characters, cut_characters=characters)


_WORD, _ID, _NAME = Bound(bytes=32), Bound(bytes=128), Bound(bytes=1024)
_LINE, _FAILURE, _PATH = _text(LINE_CHARACTERS), _text(FAILURE_CHARACTERS), Bound(bytes=4096)

BOUNDS: Mapping[str, Bound] = {
    # texts
    "activity": _WORD,
    "address": Bound(bytes=300),
    "advice": _LINE,
    "after": _ID,
    "arch": _WORD,
    "backend": _WORD,
    "before": _ID,
    "checkpoint": _PATH,
    "Job.detail": _FAILURE,
    "Hello.host": Bound(bytes=64),
    "Connection.host": Bound(bytes=MAX_HOST_BYTES),
    "cluster": _ID,
    "detail": _LINE,
    "id": _ID,
    "external_job": _ID,
    "input": _NAME,
    "incarnation": _ID,
    "job": _ID,
    "kept": _LINE,
    "kind": _WORD,
    "layout_hash": _ID,
    "leader": _NAME,
    "Member.name": _text(NAME_CHARACTERS),
    "model_sha256": _ID,
    "name": _NAME,
    "neighbour": _NAME,
    "next_page_token": _WORD,
    "optimizer": _LINE,
    "owner": _NAME,
    "page_token": _WORD,
    "parameter": _text(500),
    "path": _PATH,
    "peer": _NAME,
    "peer_role": _WORD,
    "pipeline_host": Bound(bytes=255),
    "phase": _WORD,
    "problem": _LINE,
    "reason": _FAILURE,
    "request_id": _ID,
    "role": _WORD,
    "sha256": _ID,
    "tokenizer_sha256": _ID,
    "skipped": _LINE,
    "spec_json": Bound(bytes=1 << 18, by_receiver=True),
    "state": _WORD,
    "text": _text(LOG_LINE_CHARACTERS),
    "version": Bound(bytes=64),
    "voice": _NAME,
    "waited_for": _NAME,
    "waiting": _LINE,
    "waits_for": _LINE,
    "what": _LINE,
    "worker": _NAME,
    # payloads
    "Chunk.payload": Bound(bytes=2 << 20),
    "FilePiece.data": Bound(bytes=MAX_PIECE_BYTES),
    "MetricsColumn.values": Bound(bytes=8 * MAX_ROWS),
    "PassMessage.payload": Bound(bytes=2 << 20),
    # lists and maps
    "ArrayHeader.shape": Bound(count=8),
    "ListRequest.states": Bound(count=8),
    "AxisReport.wrong": Bound(bytes=_LINE.bytes, count=8),
    "ClusterStatus.job_waits": Bound(bytes=_LINE.bytes, count=MAX_JOB_WAITS),
    "ClusterStatus.running_jobs": Bound(bytes=_ID.bytes, count=MOST_RUNNING_JOBS),
    "ClusterStatus.shards": Bound(count=MAX_SHARDS),
    "ClusterStatus.standbys": Bound(count=64),
    "ClusterStatus.waits": Bound(count=MAX_WAITS),
    "ClusterStatus.workers": Bound(count=MAX_WORKERS),
    "Evaluated.losses": Bound(count=MAX_LEASE_BATCHES),
    "Hello.features": Bound(bytes=_WORD.bytes, count=64),
    "Findings.losses": Bound(count=MAX_MICRO_BATCHES),
    "Claim.claimants": Bound(count=16),
    "Job.claims": Bound(count=8),
    "Job.code_changes": Bound(count=128),
    "Job.excluded": Bound(count=256),
    "Job.trusted_steps": Bound(bytes=_NAME.bytes, count=MAX_WORKERS),
    "LinkState.lanes": Bound(count=8),
    "ListCheckpointsRequest.jobs": Bound(bytes=_ID.bytes, count=MAX_NAMED_JOBS),
    "ListReply.jobs": Bound(total=MAX_PAGE_BYTES),
    "MeshReport.axes": Bound(count=2),
    "LogLine.more_seconds": Bound(count=MOST_BATCHED_LINES),
    "LogLine.more_texts": Bound(bytes=_MAX_UTF8_BYTES * LOG_LINE_CHARACTERS, count=MOST_BATCHED_LINES),
    "MetricsColumn.texts": Bound(bytes=_NAME.bytes, count=MAX_ROWS),
    "MetricsRequest.columns": Bound(bytes=_WORD.bytes, count=64),
    "MetricsRows.columns": Bound(total=MAX_PAGE_BYTES),
    "MissingReply.missing": Bound(count=128),
    "MissingRequest.files": Bound(count=128),
    "Open.void": Bound(count=1024),
    "OptimizerStatus.missing": Bound(count=MAX_RUNS),
    "PassJob.parts": Bound(count=MAX_PARTS),
    "Printed.lines": Bound(bytes=_MAX_UTF8_BYTES * PRINTED_LINE_CHARACTERS, count=MOST_PRINTED_LINES),
    "PruneRequest.jobs": Bound(bytes=_ID.bytes, count=MAX_NAMED_JOBS),
    "RemoveCheckpointsRequest.steps": Bound(count=MAX_NAMED_STEPS),
    "Ready.parts": Bound(count=MAX_PARTS),
    "Ready.shared": Bound(count=MAX_PARTS),
    "Row.seats": Bound(count=MAX_STAGES),
    "SendVersion.parts": Bound(count=2 * MAX_PARTS),
    "SharedPlaces.indices": Bound(count=64),
    "SharedPlaces.positions": Bound(count=64),
    "PlaneOrders.orders": Bound(total=MAX_PAGE_BYTES),
    "PlaneReports.reports": Bound(total=MAX_PAGE_BYTES),
    "StagedChunk.block_sums": Bound(count=8),
    "StagedChunks.chunks": Bound(count=MAX_RUN_PIECES),
    "ArrivedPieces.pieces": Bound(count=MAX_RUN_PIECES),
    "DropSum.chunks": Bound(count=MAX_RUN_PIECES),
    "FinishSum.chunks": Bound(count=MAX_RUN_PIECES),
    "KeepSum.chunks": Bound(count=MAX_RUN_PIECES),
    "MergeSums.chunks": Bound(count=MAX_RUN_PIECES),
    "StageChunks.chunks": Bound(count=MAX_RUN_PIECES),
    "arrivals": Bound(count=MAX_RUN_PIECES),
    "Welcome.shard_tensor_ports": Bound(count=MAX_SHARDS),
    "Welcome.shards": Bound(bytes=300, count=MAX_SHARDS),
    "checksums": Bound(count=MAX_MICRO_BATCHES),
    "chunks": Bound(count=MAX_RUNS),
    "files": Bound(bytes=128, count=128),
    "fingerprint": Bound(bytes=256, count=32),
    "worker_seconds": Bound(bytes=32, count=32),
    "non_finite": Bound(count=MAX_REPORTED_MICRO_BATCHES),
}
"""Bounds by `Message.field`, or by the field's name where it means the same in all messages."""


class MessageTooLarge(Failed):
    """A message that can't be sent, since it or one of its fields is larger than its bound.

    Attributes:
        job: id of the job that it is about; empty if it is about none.
        lease: id of the lease that it is about; 0 if it is about none.
        fault: what is too large, for a message that was received.
    """

    def __init__(self, reason: str, message: Any) -> None:
        fields = message.DESCRIPTOR.fields_by_name
        self.job = str(message.job) if "job" in fields and fields["job"].message_type is None else ""
        self.lease = int(message.lease) if "lease" in fields and fields["lease"].message_type is None else 0
        self.fault = f"{message.DESCRIPTOR.name}: {reason}"
        about = f" of job {self.job}" if self.job else ""
        super().__init__(
            f"{message.DESCRIPTOR.name}{about}: {reason}, so it can't be sent; make the job smaller"
        )


def find_bound(field: FieldDescriptor) -> Bound | None:
    """Return the bound of a text, of bytes, of a list or of a map; None if the table has none."""
    message = field.containing_type
    own = f"{message.name}.{field.name}" if message is not None else ""
    return BOUNDS.get(own) or BOUNDS.get(field.name)


def fit(message: Message) -> None:
    """Cut texts for people that are too long, and check the other bounds of a message.

    Raises:
        MessageTooLarge: a field is larger than its bound.
    """
    try:
        _fit(message)
    except _TooLarge as found:
        raise MessageTooLarge(str(found), message) from None
    size = message.ByteSize()
    if size > MESSAGE_LIMIT_BYTES:
        raise MessageTooLarge(f"{size} bytes, expected at most {MESSAGE_LIMIT_BYTES}", message)


def check_received(message: Message) -> None:
    """Check the bounds of a received message, since the peer may run other software; not those of texts for people.

    Raises:
        MessageTooLarge: a field is larger than its bound. The text names the sender, if the message does.
    """
    try:
        _fit(message, received=True)
    except _TooLarge as found:
        raise MessageTooLarge(str(found), message) from None


class _TooLarge(Exception):
    """A field that is larger than its bound."""


@dataclass(frozen=True)
class _Rule:
    """Check of a field. `inner`: whether its messages have bounds, too."""

    name: str
    bound: Bound
    repeated: bool
    is_map: bool
    is_text: bool
    inner: bool


@cache
def _rules(kind: Descriptor) -> tuple[_Rule, ...]:
    rules = []
    for field in kind.fields:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        inner = field.message_type is not None and not is_map and bool(_rules(field.message_type))
        is_text = field.cpp_type == FieldDescriptor.CPPTYPE_STRING
        if field.is_repeated or is_text or inner:
            bound = find_bound(field) or Bound()
            rules.append(_Rule(field.name, bound, field.is_repeated, is_map, is_text, inner))
    return tuple(rules)


def _fit(message: Any, received: bool = False) -> None:
    for rule in _rules(message.DESCRIPTOR):
        bound, name = rule.bound, rule.name
        if rule.repeated:
            values = getattr(message, name)
            if bound.count and len(values) > bound.count:
                raise _TooLarge(f"{name}: {len(values)} elements, expected at most {bound.count}")
            if rule.is_map:
                for key, value in values.items():
                    _check_text(name, key, bound)
                    _check_text(name, value, bound)
            elif rule.inner:
                for each in values:
                    _fit_inner(name, each, received)
            elif rule.is_text:
                for each in values:
                    _check_text(name, each, bound)
        elif rule.inner:
            if message.HasField(name):
                _fit_inner(name, getattr(message, name), received)
        elif received and bound.by_receiver:
            continue
        elif not bound.cut_characters:
            _check_text(name, getattr(message, name), bound)
        elif not received and len(getattr(message, name)) > bound.cut_characters:
            setattr(message, name, printable(getattr(message, name), bound.cut_characters))


def _fit_inner(name: str, message: Any, received: bool) -> None:
    try:
        _fit(message, received)
    except _TooLarge as found:
        sender = getattr(message, "name", "") if received else ""
        whose = f" of {printable(sender, _SENDER_CHARACTERS)}" if sender else ""
        raise _TooLarge(f"{name}{whose}: {found}") from None


def _check_text(name: str, value: Any, bound: Bound) -> None:
    if not isinstance(value, str | bytes) or not bound.bytes or len(value) * _MAX_UTF8_BYTES <= bound.bytes:
        return
    size = len(value.encode()) if isinstance(value, str) else len(value)
    if size > bound.bytes:
        raise _TooLarge(f"{name}: {size} bytes, expected at most {bound.bytes}")
