"""Check the numbers in the pages, in the protos' comments and in deploy/ against the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.core.setting_aside import MOST_CRASHES, MOST_STARTS, PROBATION_SECONDS
from aggregator.daemon import OWN_TIMEOUTS
from aggregator.data_folder import MAX_FILES as MAX_INDEXED_FILES
from aggregator.data_folder import SETTLED_SECONDS
from aggregator.downloads import MOST_DOWNLOADS
from aggregator.uploads import ROLES_BYTES, WORKER_BYTES, WORKER_FILES
from cli.daemon_commands import DEFAULT_CACHE_GB
from cli.download import MAX_FILES
from cli.supervise import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS
from optimizer.checkpoint_use import READ_SECONDS
from plane.streams.data_streams import CONNECT_SECONDS
from plane.streams.shared_memory_link import MAX_PLACES
from plane.waiting_payloads import MAX_WAITING_CHUNKS
from services.caps import Caps
from services.checkpoints.format import MAX_WORKER_FILES_BYTES
from services.config.bounds import MOST_CHECKS, MOST_CHIPS, MOST_DATA_ELEMENTS, MOST_TOKENS
from services.config.field_types import MOST_MICRO_BATCHES
from services.config.job import MOST_SPEC_BYTES
from services.files.limits import LEAST_BYTES_PER_SECOND, MAX_TRANSFERS, MAX_TRANSFERS_OF_CALLER
from services.files.transfer import IDLE_SECONDS as IDLE_TRANSFER_SECONDS
from services.instrumentation.timeline import MAX_EVENTS
from services.json_text import LAYOUT
from services.protocol.file_refs import MAX_PIECE_BYTES, MAX_TEXT_BYTES
from services.protocol.plan import (
    MIN_WINDOW_CHUNKS,
    MOST_EVALUATION_BATCHES,
    TOTAL_WINDOW_CHUNKS,
    WINDOW_CHUNKS,
)
from services.runtime.descriptors import limit_ports
from services.runtime.metrics_server import CONNECTION_SECONDS
from services.tensors.kernels.arithmetic import BLOCK_ELEMENTS
from services.tensors.layout import (
    CHUNK_ELEMENTS,
    MAX_DIMENSIONS,
    MAX_ELEMENTS,
    MAX_ENTRIES,
)
from services.timeouts import SAVE_SECONDS, STANDARD_TIMEOUTS
from services.transport.http2.stream import WINDOW_BYTES
from services.transport.limits import (
    HEADER_LIST_BYTES,
    HELLO_SECONDS,
    IDLE_SECONDS,
    MESSAGE_LIMIT_BYTES,
    OPENING_SECONDS,
)
from worker.core.job import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS
from worker.core.leases import MOST_LEASES

ROOT = Path(__file__).parents[2]
KI, MI = 1 << 10, 1 << 20
PORTS = limit_ports(65536)
CHUNK_KI, CHUNK_MI = CHUNK_ELEMENTS // KI, 4 * CHUNK_ELEMENTS // MI
*others, last = (f"`{name}`" for name in OWN_TIMEOUTS)

FACTS = {
    "docs/overview.md": (f"{CHUNK_KI} Ki elements",),
    "docs/internals/a-step.md": (
        f"{BLOCK_ELEMENTS // KI} Ki elements",
        f"Above {MAX_WAITING_CHUNKS} chunks",
    ),
    "docs/internals/wire.md": (
        f"| {WINDOW_CHUNKS} chunks of float32, or {2 * WINDOW_CHUNKS} of 16 bits |",
        f"| {TOTAL_WINDOW_CHUNKS} chunks, at least {MIN_WINDOW_CHUNKS} each |",
        f"| {WINDOW_CHUNKS} chunks; then",
        f"{MAX_ENTRIES:,} entries, {MAX_DIMENSIONS} dimensions, {LAYOUT.limit_bytes // MI} MiB |",
        f"| other files that a worker describes, together | {MAX_WORKER_FILES_BYTES // MI} MiB |",
        f"| leases of a worker | {MOST_LEASES} |",
        f"| batches of held-out data | 2^{MOST_EVALUATION_BATCHES.bit_length() - 1} |",
        f"| files of a download | {MAX_FILES} |",
        f"| message | {MESSAGE_LIMIT_BYTES // MI} MiB |",
        f"up to {MAX_PLACES} chunks",
        f"else its address | {MAX_TRANSFERS_OF_CALLER} |",
        f"all callers | {MAX_TRANSFERS};",
        f"at least {LEAST_BYTES_PER_SECOND // KI} KiB/s, averaged over six heartbeats",
        f"any file of a worker; file | {MAX_TEXT_BYTES >> 20} MiB;",
        f"{ROLES_BYTES >> 30} GiB more",
        f"piece or an answer | {IDLE_TRANSFER_SECONDS:g} s |",
        f"nobody has read for {READ_SECONDS:g} s",
        f"in pieces of {MAX_PIECE_BYTES // MI} MiB",
    ),
    "docs/operate/recovery.md": (
        f"the aggregator failed {MOST_CRASHES} times",
        f"the aggregator died {MOST_STARTS} times",
        f"has lived for {PROBATION_SECONDS:g} s",
    ),
    "docs/internals/plane.md": (f"At most {MAX_WAITING_CHUNKS} chunks",),
    "docs/operate/operations.md": (
        f"after {STANDARD_TIMEOUTS.stop:g} s",
        f"{SAVE_SECONDS / 60:g} minutes more",
        f"within {CONNECT_SECONDS:g} s",
        f"{FIRST_WAIT_SECONDS:g} s, then after twice as long each time up to {LONGEST_WAIT_SECONDS:g} s",
    ),
    "docs/operate/limits.md": (
        f"sets {', '.join(others)} or {last} by hand",
        f"has {SAVE_SECONDS:g} s",
        f"| all connections | {PORTS.main.connections:,} | {PORTS.tensors.connections:,} | "
        f"{PORTS.metrics.connections} |",
        f"all addresses | {PORTS.main.pending} | {PORTS.tensors.pending} | {PORTS.metrics.pending} |",
        f"one address | {PORTS.main.pending_by_address} | {PORTS.tensors.pending_by_address} | "
        f"{PORTS.metrics.pending_by_address} |",
        f"| {PORTS.tensors.opened_by_address} at once, then {PORTS.tensors.opened_per_second:g} a second |",
        f"| {PORTS.metrics.opened_by_address} at once, then {PORTS.metrics.opened_per_second:g} a second |",
        f"| TLS handshake | {OPENING_SECONDS:g} s | {HELLO_SECONDS:g} s | {CONNECTION_SECONDS:g} s |",
        f"| without a call | {IDLE_SECONDS:g} s |",
        f"Headers of a call have at most {HEADER_LIST_BYTES // KI} KiB",
        f"| {Caps.queued_jobs:,}; {Caps.jobs_per_person:,} |",
        f"| {MOST_SPEC_BYTES // KI} KiB |",
        f"| {Caps.log_mb} MB |",
        f"| {MOST_DOWNLOADS}, fewer with a low bandwidth; {MOST_DOWNLOADS // 2} |",
        f"| {WORKER_FILES}, and {WORKER_BYTES >> 30} GiB |",
        f"| {Caps.uploads:,}; {Caps.uploads_per_person:,} |",
        f"| {Caps.upload_gb} GB; {Caps.upload_gb_per_person} GB |",
        f"| {MOST_MICRO_BATCHES:,}; {MOST_CHECKS:,} |",
        f"| {MOST_TOKENS:,} |",
        f"| parameters | 2^{MAX_ELEMENTS.bit_length() - 1} |",
        f"| {MOST_EVALUATION_BATCHES:,} |",
        f"| 2^{MOST_DATA_ELEMENTS.bit_length() - 1} |",
        f"| chips of a mesh | {MOST_CHIPS:,} |",
    ),
    "docs/use/data.md": (
        f"{MAX_INDEXED_FILES:,} files and folders",
        f"within the last {SETTLED_SECONDS:g} s",
        f"{DEFAULT_CACHE_GB} GB by default",
        f"tries again after {FIRST_RETRY_SECONDS:g} s to {LONGEST_RETRY_SECONDS / 60:g} min",
        f"no further for {STANDARD_TIMEOUTS.follow:g} s",
    ),
    "docs/operate/hardware.md": (
        f"after {FIRST_RETRY_SECONDS:g} s",
        f"every {LONGEST_RETRY_SECONDS / 60:g} minutes",
    ),
    "docs/operate/timeline.md": (f"{MAX_EVENTS:,} events",),
    "docs/decisions/0001-the-chunk-is-the-only-unit.md": (
        f"{CHUNK_KI} Ki elements: {CHUNK_MI} MiB of float32, {CHUNK_MI // 2} MiB of bfloat16",
        f"{BLOCK_ELEMENTS // KI} Ki blocks",
    ),
    "docs/decisions/0010-one-core-many-shards.md": (f"a chunk of {CHUNK_MI} MiB",),
    "docs/decisions/0011-http2-for-tensors.md": (
        f"{WINDOW_BYTES // MI} MiB that nobody has read",
        f"Messages end at {MESSAGE_LIMIT_BYTES // MI} MiB, headers at {HEADER_LIST_BYTES // KI} KiB",
        f"within {CONNECT_SECONDS:g} s",
    ),
    "benchmarks/README.md": (f"{CHUNK_MI} MiB",),
    "protos/tensors.proto": (f"at most {CHUNK_MI} MiB",),
    "protos/files.proto": (f"at most {MAX_PIECE_BYTES // MI} MiB",),
    **{
        f"deploy/systemd/tiermesh-{role}.service": (
            f"{STANDARD_TIMEOUTS.stop:g} s",
            f"TimeoutStopSec={STANDARD_TIMEOUTS.kill:g}",
        )
        for role in ("worker", "shard")
    },
    **{
        f"deploy/systemd/tiermesh-{role}.service": (
            f"{STANDARD_TIMEOUTS.stop:g} s",
            f"{SAVE_SECONDS:g} s",
            f"TimeoutStopSec={STANDARD_TIMEOUTS.kill + SAVE_SECONDS:g}",
        )
        for role in ("aggregator", "optimizer")
    },
}
"""Numbers with their units and names, by page."""


@pytest.mark.parametrize("page", FACTS)
def test_numbers_match_the_code(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    assert [fact for fact in FACTS[page] if fact not in text] == []
