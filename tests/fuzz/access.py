"""Targets of what callers show, and of the files that say who may call: certificates, tokens, shared memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import google_crc32c
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from cli.certs.authority import make_authority
from plane.streams.shared_memory_link import (
    SHARED_MEMORY_KEY,
    ClientTensorLink,
    Metadata,
    ServerTensorLink,
)
from protos.tensors_pb2 import FLOAT32, WEIGHTS, Chunk, ChunkHeader
from services.errors import Refused
from services.tensors.shared_memory import SharedArray
from services.transport.access.enforcement import AccessControl, Credentials
from services.transport.access.identity import ROLE_PREFIX, identify
from services.transport.access.permissions import CallerKind
from services.transport.access.revocations import read_revoked
from services.transport.access.tokens import make_token, read_token_file, read_tokens
from services.transport.links import LinkClosed
from services.transport.security import Security
from tests.fuzz.draws import Draws, Known, draw_stream, record
from tests.fuzz.target import Target

_FOLDER = TemporaryDirectory(prefix="tiermesh-fuzz-")
_FILE = Path(_FOLDER.name) / "file"
_TOKEN, _RECORD = make_token(CallerKind.PERSON, "alice", 4e9)
_TOKENS = Path(_FOLDER.name) / "tokens"
_TOKENS.write_text(f"{_RECORD.to_line()}\n")
_ACCESS = AccessControl(Security(tokens=_TOKENS))
_NAME_BYTES = 80
_PLACEHOLDER = "x" * _NAME_BYTES
_SHARED_BYTES, _PLACE_BYTES = 4096, 1024


def _certificate(uris: int) -> bytes:
    """Return a certificate, DER, with this many role URIs, whose names are to be replaced."""
    signer = make_authority("authority", 1)
    names = x509.SubjectAlternativeName(
        [x509.UniformResourceIdentifier(f"{ROLE_PREFIX}{_PLACEHOLDER}")] * uris
    )
    certificate = (
        x509.CertificateBuilder(signer.certificate.subject, signer.certificate.subject)
        .public_key(signer.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(signer.certificate.not_valid_before_utc)
        .not_valid_after(signer.certificate.not_valid_after_utc)
        .add_extension(names, critical=False)
        .sign(signer.key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.DER)


_CERTIFICATES = (_certificate(1), _certificate(2))


def _certificate_bytes(content: bytes) -> None:
    identify(content)


def _certificate_names(content: bytes) -> None:
    """Identify a certificate whose role and name are any bytes."""
    draws = Draws(content)
    template = draws.pick(_CERTIFICATES)
    name = draws.take(_NAME_BYTES)
    identify(template.replace(_PLACEHOLDER.encode(), name.ljust(_NAME_BYTES, b"a")))


def _authorization(content: bytes) -> None:
    shown = Credentials(tls=True, authorization=content.decode("latin-1"))
    _ACCESS.admit("/tiermesh.Jobs/Submit", shown)


def _of_file(read: Callable[[Path], Any], content: bytes) -> None:
    _FILE.write_bytes(content)
    read(_FILE)


def _shared_memory_offer(content: bytes) -> None:
    """Open a data stream with any offer."""
    text = content.decode("latin-1")
    server = ServerTensorLink("peer", ((SHARED_MEMORY_KEY, text),), enabled=True)
    server.close()


def _shared_memory_answer(content: bytes) -> None:
    """Take any answer to an offer."""

    async def initial_metadata() -> Metadata:
        return ((SHARED_MEMORY_KEY, content.decode("latin-1")),)

    client = ClientTensorLink("peer", enabled=True, count=lambda _: None)
    try:
        asyncio.run(client.confirm(SimpleNamespace(initial_metadata=initial_metadata)))
    except LinkClosed as closed:
        raise Refused(str(closed)) from None
    finally:
        client.close()


def _repair(chunk: Chunk) -> None:
    if chunk.HasField("shared"):
        content = chunk.header.SerializeToString() + chunk.shared.SerializeToString()
        chunk.shared.own_crc32c = google_crc32c.value(content)


def _shared_memory_reference(content: bytes) -> None:
    """Read what messages refer to, in memory of this process whose header is damaged."""
    draws = Draws(content)
    client = ClientTensorLink("peer", enabled=True, count=lambda _: None)
    server = ServerTensorLink("peer", client.metadata, enabled=True)
    array = SharedArray(_SHARED_BYTES, _PLACE_BYTES)
    try:
        array.mark(0, 1)
        damage = draws.byte()
        if damage & 1:
            os.pwrite(array.descriptor, draws.take(8), damage // 2 % 40)
        known: Known = {
            "identity": [array.identity],
            "descriptor": [array.descriptor, 0, 1],
            "sequence": [1],
            "indices": [0, 1, 3, 4],
            "dtype": [FLOAT32],
            "kind": [WEIGHTS],
        }
        for message in draw_stream(draws, Chunk, known, _repair):
            for chunk in server.deserialize(message):
                assert len(bytes(chunk.payload)) <= max(_PLACE_BYTES, len(message))
                assert chunk.intact in (True, False)
    finally:
        array.close()
        server.close()
        client.close()


_SERIALS = b"# revoked\n1f2e3d compromised\n0\n"
ACCESS_TARGETS = {
    "authorization": Target(
        _authorization,
        (f"Bearer {_TOKEN}".encode(), b"Bearer tm_", b"Basic YQ=="),
        before_authentication=True,
    ),
    "certificate": Target(_certificate_bytes, _CERTIFICATES),
    "certificate_names": Target(
        _certificate_names, (b"\0worker/loudbox-3", b"\0person/\r\n\x1b[2J", b"\1admin/alice", b"\0nobody/")
    ),
    "revocations": Target(partial(_of_file, read_revoked), (_SERIALS,)),
    "tokens": Target(partial(_of_file, read_tokens), (_TOKENS.read_bytes() + b"# comment\n",)),
    "token_file": Target(partial(_of_file, read_token_file), (_TOKEN.encode(),)),
    "shared_memory_offer": Target(_shared_memory_offer, (b"1 2 " + 64 * b"0", b"no", b"9" * 300)),
    "shared_memory_answer": Target(_shared_memory_answer, (b"no", 64 * b"0" + b" 1 2")),
    "shared_memory_reference": Target(
        _shared_memory_reference,
        (
            b"\0" + record(Chunk(header=ChunkHeader(index=1))),
            b"\0" + bytes([3, 255, 255] + 60 * [0]),
            b"\x03\xff\0\0\0\0\0\0\0" + bytes([3, 255, 255] + 60 * [1]),
        ),
    ),
}
"""Targets of access by name. The TLS library has verified a certificate before it is read here."""
