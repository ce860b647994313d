"""A target for each RPC method: streams of any bytes and of well-formed messages, through the services of the roles.

The first byte chooses the role, where several serve the method, the second its state, and the third whether the call
has the metadata of the peer that attends. The others are the messages (`draws.py`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import google_crc32c
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from plane.link_check.rounds import client_values
from plane.streams.shared_memory_link import SHARED_MEMORY_KEY
from protos import cluster_pb2 as cluster
from protos import files_pb2 as files
from protos import jobs_pb2 as jobs
from protos import plane_pb2 as plane
from protos.pipeline_pb2 import ACTIVATION_GRADIENT, ArrayHeader, LanePosition, LinkState, PassMessage
from protos.tensors_pb2 import FLOAT32, KNOWN_VALUES, Chunk, ChunkHeader, LinkRound, SharedPlaces
from services.checkpoints.hugging_face import CONFIG_FILE
from services.protocol.checksums import set_checksum
from services.protocol.file_refs import make_ref
from services.protocol.hello import Role, make_hello
from services.tensors.chunk_messages import pack_chunk, serialize_chunk
from tests.fuzz.calls import Call, Metadata, settle
from tests.fuzz.draws import Draws, draw_stream, record
from tests.fuzz.roles import (
    CLUSTER,
    CONTENTS,
    EPOCH,
    EVALUATION_BATCHES,
    FINGERPRINT,
    INCARNATION,
    JOB,
    KNOWN,
    LAYOUT,
    LAYOUT_TEXT,
    LEASE,
    PART,
    REFS,
    ROW,
    SPEC,
    STATE,
    Attending,
    ServedAggregator,
    ServedOptimizer,
    ServedRole,
    ServedShard,
    ServedWorker,
    initial_weights,
    orders,
    pieces_of,
    serves,
    serving,
)
from tests.fuzz.target import Target
from tests.support.services import own_services
from worker.pipeline.array_plan import KINDS

ROLES: tuple[type[ServedRole], ...] = (ServedAggregator, ServedOptimizer, ServedShard, ServedWorker)
"""All roles that serve calls."""
_FRESH, _ATTENDED, _TRAINING = range(3)
_GOES_ON = 64
"""Bit by which the messages of Attend go on where the peer is that attends."""
_STATES = {
    **dict.fromkeys(
        ("Cluster", "Optimizer", "Shard", "Pipeline"), (_FRESH, _ATTENDED, _TRAINING, _GOES_ON | _TRAINING)
    ),
    "Jobs": (_FRESH, _TRAINING),
}
"""States in which the methods of a service are called at first."""
_CHECKED = ("Cluster", "Optimizer", "Shard", "Pipeline")
"""Services that have MeasureLink."""
_LONG_METADATA = bytes(62) + b"\0"
"""Choices of an incarnation of 1,860 characters, and of an offer of shared memory."""
_OFFERS = ("1 2 " + 64 * "0", "x", "9" * 300 + " 1 " + 64 * "0")


def repair(message: Any) -> None:
    """Set the checksums inside a message, over what their senders compute them."""
    match message:
        case files.FilePiece():
            message.crc32c = google_crc32c.value(message.data)
        case Chunk() if not message.HasField("round"):
            message.header.crc32c = google_crc32c.value(message.payload)
        case PassMessage():
            if message.HasField("header"):
                message.header.crc32c = google_crc32c.value(message.payload)
                set_checksum(message.header, b"")
            if message.HasField("shared"):
                set_checksum(message.shared, message.header.SerializeToString())
            if message.HasField("state"):
                set_checksum(message.state, b"")


def _metadata(draws: Draws, role: ServedRole) -> Metadata:
    """Return the metadata of a call: that of the peer that attends, or something else."""
    how = draws.byte()
    if how < 192:
        return role.metadata
    drawn = "".join(chr(32 + each % 95) for each in draws.take(how % 64)) * (30 if how > 250 else 1)
    return (*((key, drawn) for key, _ in role.metadata[how % 2 :]), (SHARED_MEMORY_KEY, draws.pick(_OFFERS)))


def _run(method: str, request: type[Message], content: bytes) -> None:
    draws = Draws(content)
    kinds = [kind for kind in ROLES if method.split("/")[1] in serves(kind)]

    async def run() -> None:
        async with serving(draws.pick(kinds)) as role:
            how = draws.byte()
            peer = await _bring_to(role, how % _GOES_ON % 3)
            metadata = _metadata(draws, role)
            messages = draw_stream(draws, request, KNOWN, repair)
            if peer is not None and how & _GOES_ON and method.endswith("Attend"):  # the peer goes on
                for each in messages:
                    peer.send_bytes(each)
                await settle(peer, peer.task)
            else:
                await role.port.try_call(method, Call(messages, metadata))

    try:
        asyncio.run(run())
    except Exception as error:  # whatever is refused is answered with a status
        raise AssertionError(f"{method}: {error!r}") from error


async def _bring_to(role: ServedRole, state: int) -> Attending | None:
    """Bring a role into a state; return the call of the peer that attends, if there is one."""
    if state == _ATTENDED:
        return await role.attend()
    return await role.train() if state == _TRAINING else None


def _hello(role: Role) -> cluster.Hello:
    hello = make_hello(role, "peer", incarnation=INCARNATION, heartbeat_seconds=5.0)
    if role is Role.AGGREGATOR:
        hello.epoch_seen, hello.cluster = EPOCH, CLUSTER
    return hello


def _streams() -> dict[str, list[list[Message]]]:
    """Return what a peer may send, by method; streams of requests for the methods that are not here are one each."""
    job, layout, config = JOB, *map(make_ref, (LAYOUT_TEXT, b"{}"))
    return {
        "/tiermesh.Cluster/Attend": [
            [
                cluster.WorkerMessage(hello=_hello(Role.WORKER)),
                cluster.WorkerMessage(epoch=EPOCH, heartbeat=cluster.Heartbeat()),
                cluster.WorkerMessage(
                    epoch=EPOCH,
                    ready=cluster.Ready(
                        job=job,
                        layout_hash=LAYOUT.hash,
                        elements=LAYOUT.elements,
                        evaluation_batches=EVALUATION_BATCHES,
                        fingerprint=FINGERPRINT,
                        tokens_per_micro_batch=8,
                    ),
                ),
                cluster.WorkerMessage(
                    epoch=EPOCH,
                    description=cluster.Description(
                        job=job, lease=LEASE, layout=layout, files={CONFIG_FILE: config}
                    ),
                ),
                cluster.WorkerMessage(
                    epoch=EPOCH,
                    fetching=cluster.Fetching(job=job, input="i", bytes=1, size=2, problem="p"),
                ),
                cluster.WorkerMessage(epoch=EPOCH, printed=cluster.Printed(job=job, lines=["a line"])),
                cluster.WorkerMessage(epoch=EPOCH, failure=cluster.Failure(job=job, lease=LEASE, reason="r")),
            ]
        ],
        "/tiermesh.Cluster/Exchange": [[initial_weights(LEASE)]],
        "/tiermesh.Optimizer/Attend": [
            [
                cluster.OptimizerCommand(epoch=EPOCH, hello=_hello(Role.AGGREGATOR)),
                cluster.OptimizerCommand(epoch=EPOCH, open=cluster.Open(job=job, spec_json=SPEC)),
                cluster.OptimizerCommand(
                    epoch=EPOCH,
                    initialise=cluster.Initialise(job=job, layout=layout, files={CONFIG_FILE: config}),
                ),
                cluster.OptimizerCommand(epoch=EPOCH, send_weights=cluster.SendWeights(job=job)),
                cluster.OptimizerCommand(epoch=EPOCH, start_over=cluster.StartOver(job=job, generation=1)),
                cluster.OptimizerCommand(epoch=EPOCH, save_checkpoint=cluster.SaveCheckpoint(job=job)),
                cluster.OptimizerCommand(epoch=EPOCH, close=cluster.Close(job=job)),
            ]
        ],
        "/tiermesh.Optimizer/Exchange": [[initial_weights(0)]],
        "/tiermesh.Optimizer/Checkpoint": [[cluster.CheckpointRequest(job=job, newest=True)]],
        "/tiermesh.Shard/Attend": [
            [
                orders(plane.PlaneOrder(hello=_hello(Role.AGGREGATOR))),
                orders(
                    plane.PlaneOrder(
                        open_part=plane.OpenPart(
                            opening=1, job=job, spec_json=SPEC, layout=layout, tensors=make_ref(PART)
                        )
                    ),
                    plane.PlaneOrder(worker_attends=plane.WorkerAttends(session=1, incarnation=INCARNATION)),
                    plane.PlaneOrder(send_version=plane.SendVersion(job=job, session=1, generation=1)),
                    plane.PlaneOrder(make_weights=plane.MakeWeights(job=job, generation=1)),
                    plane.PlaneOrder(copy=plane.CopyPart(job=job, copy=1)),
                    plane.PlaneOrder(drop_copy=plane.DropCopy(job=job, copy=1)),
                    plane.PlaneOrder(stage=plane.StageChunks(chunks=[0], job=job, initial=True)),
                ),
            ]
        ],
        **{
            f"/tiermesh.{service}/MeasureLink": _rounds()
            for service in ("Cluster", "Optimizer", "Shard", "Pipeline")
        },
        "/tiermesh.Pipeline/Pass": [_arrays()],
        "/tiermesh.Files/Missing": [[files.MissingRequest(files=REFS)]],
        "/tiermesh.Files/Write": [list(pieces_of(content)) for content in (*CONTENTS, PART)],
        "/tiermesh.Files/Read": [
            *([files.ReadFileRequest(sha256=each.sha256, offset=1, length=2)] for each in REFS),
            [files.ReadFileRequest(sha256=REFS[0].sha256, job=job, step=1)],
        ],
        "/tiermesh.Jobs/Submit": [[jobs.SubmitRequest(spec_json=SPEC, request_id="r")]],
        "/tiermesh.Jobs/Continue": [[jobs.ContinueRequest(job=job, step=1, steps=9, total_steps=9)]],
        "/tiermesh.Jobs/List": [[jobs.ListRequest(page_token="1", limit=1, newest_first=True)]],
        "/tiermesh.Jobs/Logs": [[jobs.LogsRequest(job=job, follow=True)]],
        "/tiermesh.Jobs/Metrics": [
            [jobs.MetricsRequest(job=job, columns=["loss"], first_step=1, last_step=9, points=2)]
        ],
        "/tiermesh.Jobs/Checkpoint": [[cluster.CheckpointRequest(job=job, newest=True)]],
        "/tiermesh.Jobs/Trust": [[jobs.TrustRequest(job=job, worker="w1")]],
        "/tiermesh.Jobs/Check": [[jobs.CheckRequest(rows=1, columns=2, backend="emulator")]],
        "/tiermesh.Jobs/Cancel": [[jobs.CancelRequest(job=job, now=True)]],
        "/tiermesh.Jobs/SetPriority": [[jobs.PriorityRequest(job=job, priority=-1)]],
        **{
            f"/tiermesh.Jobs/{name}": [[jobs.JobRequest(job=job)]]
            for name in ("Get", "Spec", "Watch", "Pause", "Resume")
        },
    }


def _rounds() -> list[list[Message]]:
    """Return what a client of MeasureLink may send: a sum, a tensor each way, and an empty round."""
    values = pack_chunk(ChunkHeader(kind=KNOWN_VALUES, dtype=FLOAT32), 0, client_values(0, 4))
    chunk = Chunk.FromString(serialize_chunk(values))
    return [
        [Chunk(round=LinkRound(number=1, up_elements=4, down_elements=4, add=True)), chunk],
        [
            Chunk(round=LinkRound(number=1)),
            Chunk(round=LinkRound(number=2, up_elements=4)),
            chunk,
            Chunk(round=LinkRound(number=3, down_elements=4)),
        ],
    ]


def _arrays() -> list[Message]:
    """Return what a neighbour may send: its state, an activation's gradient in two pieces, and another state."""
    state = LinkState()
    state.CopyFrom(STATE)
    state.lanes.extend(LanePosition(kind=kind) for kind in KINDS)
    messages: list[Message] = [PassMessage(state=state)]
    for start in (0, 8):
        header = ArrayHeader(
            job=JOB,
            epoch=EPOCH,
            generation=1,
            step=1,
            lease=LEASE,
            row=ROW.row,
            kind=ACTIVATION_GRADIENT,
            shape=[2, 2],
            dtype=FLOAT32,
            number=1,
            offset_bytes=start,
        )
        messages.append(PassMessage(header=header, payload=bytes(8)))
    messages.append(PassMessage(header=header, shared=SharedPlaces(identity=1, descriptor=1, indices=[0])))
    messages.append(PassMessage(state=state))
    for each in messages:
        repair(each)
    return messages


def _seed(role: int, state: int, *messages: Message) -> bytes:
    return bytes([role, state, 0]) + b"".join(map(record, messages))


def _filled(message: Message) -> Message:
    """Return a message whose own texts are long."""
    for field in message.DESCRIPTOR.fields:
        if field.type == field.TYPE_STRING and not field.is_repeated:
            setattr(message, field.name, "x" * 2000)
    return message


def _targets() -> dict[str, Target]:
    streams, targets = _streams(), {}
    for service in own_services():
        for described in service.methods:
            method = f"/{service.full_name}/{described.name}"
            request = GetMessageClass(described.input_type)
            roles = range(sum(service.full_name in serves(kind) for kind in ROLES))
            states = _STATES.get(service.name, (_FRESH,))
            seeds = [
                _seed(role, state, *messages)
                for messages in streams.get(method, [[request()]])
                for role in roles
                for state in states
            ]
            seeds.append(bytes([0, _FRESH, 254]) + _LONG_METADATA + record(_filled(request())))
            targets[f"{service.name}.{described.name}"] = Target(partial(_run, method, request), tuple(seeds))
    return targets


RPC_TARGETS = _targets()
"""Targets by `Service.Method`. All are reached after authentication, where it is required."""
