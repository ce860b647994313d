"""A person as an insider: calls of Jobs and Files that lie, uploads that trickle, specs with an odd value."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import google_crc32c
import grpc
from google.protobuf.message import Message

from protos import files_pb2 as files
from protos import jobs_pb2 as jobs
from services.protocol.bounds import MESSAGE_LIMIT_BYTES
from services.protocol.file_refs import make_ref
from tests.insider.calls import CALL_SECONDS, call
from tests.insider.lies import JSON_VALUES, TEXTS, Liar, Trick, shown

UPLOAD_SECONDS = 5.0
"""Longest time of a small upload of somebody else."""
TRICKLES = 20
"""Number of uploads that trickle at once."""
NESTED = b"[" + b"[]," * (13 << 20) + b"[]]"
"""A file of 39 MB that takes over 1 GB once it is parsed as JSON."""
SERVICES = (jobs.DESCRIPTOR.services_by_name["Jobs"], files.DESCRIPTOR.services_by_name["Files"])


class LyingPerson:
    """Calls of one person.

    Args:
        channel: connection to the aggregator, with the person's certificate.
        seed: what all lies follow from.
        specs: specs of jobs, one value of which becomes odd.
        wanted: contents that others upload, whose references the person knows.

    Attributes:
        told: the lies, for people.
        submitted: ids of jobs that were accepted.
    """

    def __init__(self, channel: grpc.Channel, seed: int, specs: list[str], wanted: list[bytes]) -> None:
        self.told: list[str] = []
        self.submitted: list[str] = []
        self._channel = channel
        self._seed = seed
        self._specs = specs
        self._wanted = wanted
        self._numbers = itertools.count(1)
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def close(self) -> None:
        """End all uploads that trickle."""
        self._over.set()
        for each in self._threads:
            each.join()

    def lie(self) -> None:
        """Tell the next lie."""
        number = next(self._numbers)
        liar = Liar(f"{self._seed}.{number}")
        for content in self._wanted:
            liar.learn(make_ref(content))
        for job in self.submitted[-1:]:
            liar.learn(jobs.JobRequest(job=job))
        lies: list[Callable[[Liar], str]] = [
            self._call,
            self._call,
            self._submit,
            self._submit,
            self._ask,
            self._write,
        ]
        what = liar.draw.choice([*lies, self._trickle])(liar)
        self.told.append(f"{self._seed}.{number}: {what}")

    def upload(self, content: bytes) -> None:
        """Upload a file, truly.

        Raises:
            grpc.RpcError: the aggregator refuses it, or does not answer in time.
        """
        ask = self._channel.unary_unary(
            "/tiermesh.Files/Missing",
            request_serializer=files.MissingRequest.SerializeToString,
            response_deserializer=files.MissingReply.FromString,
        )
        if ask(files.MissingRequest(files=[make_ref(content)]), timeout=UPLOAD_SECONDS).missing:
            self._write_call()(_pieces(content), timeout=UPLOAD_SECONDS)

    def submit(self, spec: str) -> str:
        """Submit a job; return its id, or nothing if it is refused."""
        before = len(self.submitted)
        self._send(SERVICES[0].methods_by_name["Submit"], jobs.SubmitRequest(spec_json=spec))
        return "".join(self.submitted[before:])

    def cancel(self, job: str) -> None:
        """Cancel a job."""
        self._send(SERVICES[0].methods_by_name["Cancel"], jobs.CancelRequest(job=job))

    def ask(self, ref: files.FileRef) -> None:
        """Ask whether a file is missing."""
        request = files.MissingRequest(files=[ref])
        self._send(SERVICES[1].methods_by_name["Missing"], request)

    def trickle(self, *contents: bytes) -> None:
        """Begin to upload files with a byte a second, and wait until the first bytes have left, if they are let."""
        begun = threading.Semaphore(0)
        for content in contents:
            arguments = (self._bytes_of(content, begun), 60.0)
            thread = threading.Thread(target=self._stream, args=arguments, daemon=True)
            thread.start()
            self._threads.append(thread)
        deadline = time.monotonic() + CALL_SECONDS
        for _ in contents:
            begun.acquire(timeout=max(0.0, deadline - time.monotonic()))

    def _call(self, liar: Liar) -> str:
        """Call any method with a message that is made up."""
        service = liar.draw.choice(SERVICES)
        method = liar.draw.choice(service.methods)
        request = liar.make_up(method.input_type)
        self._send(method, request)
        return f"{method.name} {shown(request)}"

    def _send(self, method: Any, request: Message) -> None:
        for answer in call(self._channel, method, [request]):
            if isinstance(answer, jobs.Job) and method.name == "Submit":
                self.submitted.append(answer.id)

    def _submit(self, liar: Liar) -> str:
        """Submit a job with one odd value."""
        spec = liar.draw.choice(self._specs)
        known = [make_ref(each).sha256 for each in self._wanted]
        changed = liar.change_json(spec, [*JSON_VALUES, *known, *known])
        request = jobs.SubmitRequest(name=liar.draw.choice(("x", *TEXTS)), spec_json=changed)
        if request.ByteSize() < MESSAGE_LIMIT_BYTES:
            method = SERVICES[0].methods_by_name["Submit"]
            self._send(method, request)
        return f"Submit with {_difference(spec, changed)}"

    def _ask(self, liar: Liar) -> str:
        """Ask for files, with a lie about one."""
        request = files.MissingRequest(files=[make_ref(liar.draw.choice(self._wanted))])
        lie = Liar(f"{self._seed}.{liar.draw.random()}", tricks=[Trick.FIELD]).tell_now(request)
        told: Any = lie.messages[0]
        self._send(SERVICES[1].methods_by_name["Missing"], told)
        return f"Missing with {lie.detail}"

    def _write(self, liar: Liar) -> str:
        """Upload a file, with a lie about one of its pieces."""
        content = liar.draw.choice(self._wanted)[:3_000_000]
        pieces = list(_pieces(content))
        place = liar.draw.randrange(len(pieces))
        lie = Liar(f"{self._seed}.{liar.draw.random()}").tell_now(pieces[place])
        pieces[place : place + 1] = [each for each in lie.messages if isinstance(each, files.FilePiece)]
        self._stream(iter(pieces), CALL_SECONDS)
        return f"Write with {lie}"

    def _trickle(self, liar: Liar) -> str:
        """Begin uploads that send a byte a second, of files of the person's own and of what others need."""
        running = sum(each.is_alive() for each in self._threads)
        if running < TRICKLES:
            self.trickle(
                self._wanted[0], *(liar.draw.randbytes(3_000_000) for _ in range(running + 1, TRICKLES))
            )
        return f"{TRICKLES} uploads of a byte a second"

    def _bytes_of(self, content: bytes, begun: threading.Semaphore) -> Iterator[files.FilePiece]:
        for start in range(len(content)):
            data = content[start : start + 1]
            piece = files.FilePiece(offset=start, data=data, crc32c=google_crc32c.value(data))
            if not start:
                piece.file.CopyFrom(make_ref(content))
            yield piece
            if not start:
                begun.release()
            if self._over.wait(1.0):
                return

    def _write_call(self) -> Any:
        return self._channel.stream_unary(
            "/tiermesh.Files/Write", request_serializer=files.FilePiece.SerializeToString
        )

    def _stream(self, pieces: Iterator[Message], seconds: float) -> None:
        with suppress(grpc.RpcError):
            self._write_call()(pieces, timeout=seconds)


def _pieces(content: bytes) -> Iterator[files.FilePiece]:
    for start in range(0, max(1, len(content)), 1 << 20):
        data = content[start : start + (1 << 20)]
        piece = files.FilePiece(offset=start, data=data, crc32c=google_crc32c.value(data))
        if not start:
            piece.file.CopyFrom(make_ref(content))
        yield piece


def _difference(true: str, told: str) -> str:
    """Return where two texts differ, for people."""
    start = next(
        (at for at, pair in enumerate(zip(true, told, strict=False)) if pair[0] != pair[1]), len(true)
    )
    return f"{told[max(0, start - 40) : start + 80]!r:.140}"
