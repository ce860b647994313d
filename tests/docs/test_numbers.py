"""Numbers in the pages, in the protos' comments and in deploy/ are the code's."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.core.leasing.evaluation import MOST_BATCHES
from aggregator.daemon import OWN_RUNGS
from aggregator.shards.server.session import WAITING_CHUNKS as WAITING_IN_A_SHARD
from cli.download import MOST_FILES
from cli.supervise import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS
from optimizer.checkpoint_store import PART_BYTES
from services.instrumentation.timeline import MAX_EVENTS
from services.protocol.plan import MIN_WINDOW_CHUNKS, TOTAL_WINDOW_CHUNKS, WINDOW_CHUNKS
from services.tensors.kernels.arithmetic import BLOCK_ELEMENTS
from services.tensors.layout import CHUNK_ELEMENTS, MAX_DIMENSIONS, MAX_ELEMENTS
from services.timeouts import STANDARD_TIMEOUTS
from services.transport.data_streams import CONNECT_SECONDS
from services.transport.http2.headers import HEADER_LIST_BYTES
from services.transport.http2.stream import WINDOW_BYTES
from services.transport.limits import MESSAGE_LIMIT_BYTES
from services.transport.shared_memory_link import MAX_PLACES
from worker.core.worker import LONGEST_RETRY_SECONDS, MOST_LEASES, RETRY_SECONDS

ROOT = Path(__file__).parents[2]
KI, MI = 1 << 10, 1 << 20
CHUNK_KI, CHUNK_MI = CHUNK_ELEMENTS // KI, 4 * CHUNK_ELEMENTS // MI
*others, last = (f"`{name}`" for name in OWN_RUNGS)

SAID = {
    "docs/concepts.md": (
        f"cut into chunks of {CHUNK_KI} Ki elements",
        f"its window: {WINDOW_CHUNKS} chunks of float32 ({2 * WINDOW_CHUNKS} of 16 bits), fewer where more than "
        f"two leases share a step, so that all of them together have at most {TOTAL_WINDOW_CHUNKS} on their way "
        f"({MIN_WINDOW_CHUNKS} each at the least",
        f"once {WINDOW_CHUNKS} do, the aggregator reads no worker's stream",
        f"up to {MAX_PLACES} chunks at once",
        f"at most {WAITING_IN_A_SHARD} of them; then workers' streams are not read",
        f"a layout to 2^{MAX_ELEMENTS.bit_length() - 1} elements and {MAX_DIMENSIONS} dimensions, a worker to "
        f"{MOST_LEASES} leases, held-out data to 2^{MOST_BATCHES.bit_length() - 1} batches, a download to {MOST_FILES} "
        "files",
    ),
    "docs/operations.md": (
        f"cut off after {STANDARD_TIMEOUTS.stop:g} s",
        f"it can't be reached within {CONNECT_SECONDS:g} s",
        f"after {FIRST_WAIT_SECONDS:g} s, then twice as long each time up to {LONGEST_WAIT_SECONDS:g} s, from "
        f"{FIRST_WAIT_SECONDS:g} s again",
        f"tries again after {RETRY_SECONDS:g} s, then less and less often, up to every "
        f"{LONGEST_RETRY_SECONDS / 60:g} minutes",
        f"`--timeout NAME=SECONDS` of the aggregator sets {', '.join(others)} or {last} by hand",
    ),
    "docs/timeline.md": (f"{MAX_EVENTS:,} events at most",),
    "docs/decisions/0001-a-bucket-is-a-chunk.md": (
        f"into chunks of {CHUNK_KI} Ki elements ({CHUNK_MI} MiB of float32, {CHUNK_MI // 2} MiB of bfloat16)",
        f"of the {BLOCK_ELEMENTS // KI} Ki blocks of the norm",
    ),
    "docs/decisions/0010-one-mind-many-hands.md": (f"For a chunk of {CHUNK_MI} MiB",),
    "docs/decisions/0011-http2-for-tensors.md": (
        f"may send {WINDOW_BYTES // MI} MiB that nobody has read",
        f"Messages end at {MESSAGE_LIMIT_BYTES // MI} MiB, headers at {HEADER_LIST_BYTES // KI} KiB",
        f"who can't reach it within {CONNECT_SECONDS:g} s",
    ),
    "benchmarks/README.md": (f"over chunks of {CHUNK_MI} MiB that are in no cache",),
    "protos/tensors.proto": (f"at most {CHUNK_MI} MiB",),
    "protos/shards.proto": (f"little-endian, at most {CHUNK_MI} MiB",),
    "protos/cluster.proto": (f"next piece, at most {PART_BYTES // MI} MiB",),
    **{
        f"deploy/systemd/tiermesh-{role}.service": (
            f"ends by itself after {STANDARD_TIMEOUTS.stop:g} s at most.",
            f"TimeoutStopSec={STANDARD_TIMEOUTS.kill:g}",
        )
        for role in ("worker", "aggregator", "optimizer", "shard")
    },
}


@pytest.mark.parametrize("page", SAID)
def test_numbers_are_the_code_s(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    for said in SAID[page]:
        assert said in text
