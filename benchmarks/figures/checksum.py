"""checksum: CPU seconds for the CRC-32C of a gigabyte of chunks, compared with copying the same chunks."""

from __future__ import annotations

import time
from collections.abc import Callable

import google_crc32c
import numpy as np

from benchmarks.harness.report import median, report
from native import crc32c
from services.tensors.layout import CHUNK_ELEMENTS

CHUNK_BYTES = 4 * CHUNK_ELEMENTS
CHUNKS = 128
"""Enough chunks that none is still cached at its next turn, like chunks that pass through a role."""
ROUNDS = 9


def run() -> bool:
    """Measure and report `checksum_cpu_seconds_per_gb`."""
    source = np.random.Generator(np.random.Philox(0)).integers(0, 256, (CHUNKS, CHUNK_BYTES), np.uint8)
    target = np.empty_like(source)

    def checksums() -> None:
        for chunk in source:
            crc32c.value(chunk)

    def google_checksums() -> None:
        for chunk in source:
            google_crc32c.value(chunk)

    def copies() -> None:
        for chunk, out in zip(source, target, strict=True):
            np.copyto(out, chunk)

    works = {"crc32c": checksums, "google-crc32c": google_checksums, "memcpy": copies}
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(ROUNDS + 1):
        for name, work in works.items():
            taken = _cpu_seconds(work) / (source.nbytes / 1e9)
            if number:
                seconds[name].append(taken)
    ours, google, memcpy = (median(each) for each in seconds.values())
    return report(
        "checksum_cpu_seconds_per_gb",
        ours,
        0.15,
        f"GB: 1e9 bytes, in {CHUNKS} chunks of {CHUNK_BYTES / 2**20:g} MiB; one core; median, n = {ROUNDS}",
        f"memcpy of the same: {memcpy:.3f}; crc32c / memcpy: {ours / memcpy:.2f}",
        f"google-crc32c ({google_crc32c.implementation}): {google:.3f}",
        "each hop takes it twice, on sending and on arrival",
    )


def _cpu_seconds(work: Callable[[], None]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
