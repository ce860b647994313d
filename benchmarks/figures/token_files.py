"""Token files: the time of `tiermesh tokenize`, the time to open 1 GB of ids, and the memory to train on 100 GB."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.peer import SCRIPTS
from benchmarks.harness.report import median, milliseconds, report
from services.corpora.block_digest import BLOCK_BYTES
from services.corpora.sidecar import TokenSidecar, sidecar_path
from services.corpora.token_file import TokenFile
from services.corpora.writer import new_token_file

FOLDER = BUILD / "tokens"
CORES = 2
VOCABULARY = 8192
REPEATS, ROUNDS = 16, 5
OPENED_BYTES, SPARSE_BYTES, SMALL_BYTES = 10**9, 10**11, 10**8
OPENINGS, MICRO_BATCHES = 21, 200


def tokenize() -> bool:
    """Report `tokenize_over_encode_batch`, both on two cores.

    The command's time has everything but the start of the process and the loading of the tokenizer: reading the texts,
    encoding, writing and synchronising ids and sidecar. The library's is that of one call alone.
    """
    with _two_cores(), _folder():
        texts, tokenizer_file = _corpus()
        works = {
            "tiermesh tokenize": [
                *(
                    sys.executable,
                    "-m",
                    "cli.main",
                    "tokenize",
                    str(texts),
                    "--tokenizer",
                    str(tokenizer_file),
                ),
                *("-o", str(FOLDER / "ids.bin"), "--force", "--json"),
            ],
            "encode_batch": _peer(texts, tokenizer_file, "encode_batch"),
            "encode_batch_fast": _peer(texts, tokenizer_file, "encode_batch_fast"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in works}
        ids = set()
        for _ in range(ROUNDS):
            for name, command in works.items():
                result = _run(command)
                seconds[name].append(result["seconds"])
                ids.add(result["ids"])
        ratios = [
            ours / theirs
            for ours, theirs in zip(seconds["tiermesh tokenize"], seconds["encode_batch"], strict=True)
        ]
        size_bytes = texts.stat().st_size
    return report(
        "tokenize_over_encode_batch",
        median(ratios),
        1.1,
        f"median of {ROUNDS} ratios of runs side by side [{min(ratios):.3f} - {max(ratios):.3f}]; {CORES} cores",
        f"{size_bytes / 1e6:.1f} MB of JSON lines, {' or '.join(map(str, ids))} ids, vocabulary {VOCABULARY}",
        *(f"{name}: {milliseconds(taken)}" for name, taken in seconds.items()),
    )


def opening() -> bool:
    """Report `token_file_open_ms`: `TokenFile.open` of 1 GB of ids with a sidecar."""
    with _folder():
        path = FOLDER / "ids.bin"
        ids = np.random.Generator(np.random.Philox(0)).integers(0, 50_257, BLOCK_BYTES, np.uint32)
        with new_token_file(path, "uint16") as writer:
            while writer.count < OPENED_BYTES // 2:
                writer.write(ids)
        seconds = []
        for _ in range(OPENINGS):
            started = time.perf_counter()
            found = TokenFile.open(path, "FILE")
            seconds.append(time.perf_counter() - started)
            found.close()
    return report(
        "token_file_open_ms",
        1e3 * median(seconds),
        50,
        f"{writer.sidecar.file_bytes / 1e9:.2f} GB, {writer.sidecar.count:,} ids; {milliseconds(seconds)}",
    )


def memory() -> bool:
    """Report `token_file_memory_mib`: how much more memory micro-batches of 100 GB take than those of 100 MB.

    The files are sparse. Their sidecars are made without reading them: each block but a shorter last one has the same
    hash, and the hash of the whole file, which opening and reading don't use, is made up.
    """
    with _folder():
        results = {}
        for size_bytes in (SMALL_BYTES, SPARSE_BYTES):
            path = FOLDER / f"{size_bytes}.bin"
            _write_sparse(path, size_bytes)
            command = [
                sys.executable,
                "-m",
                "benchmarks.harness.window_reader",
                str(path),
                str(MICRO_BATCHES),
            ]
            results[size_bytes] = _run(command)
    small, large = results[SMALL_BYTES], results[SPARSE_BYTES]
    return report(
        "token_file_memory_mib",
        (large["bytes"] - small["bytes"]) / 2**20,
        64,
        *(
            f"{size_bytes / 1e9:g} GB: {result['bytes'] / 2**20:.0f} MiB at the peak, of which "
            f"{(result['bytes'] - result['early_bytes']) / 2**20:.1f} MiB came after a tenth of the {MICRO_BATCHES} "
            f"micro-batches; {result['seconds']:.1f} s"
            for size_bytes, result in results.items()
        ),
    )


@contextmanager
def _folder() -> Iterator[None]:
    """Make the folder of the files, and empty it at the end: they are large."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        for path in FOLDER.iterdir():
            path.unlink()


@contextmanager
def _two_cores() -> Iterator[None]:
    """Let this process and those that it starts use two cores; the library starts a thread for each."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(allowed)[:CORES]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _corpus() -> tuple[Path, Path]:
    """Write Python's reference, several times, as JSON lines, and a byte-pair encoding of it; return both paths."""
    from pydoc_data.topics import topics

    documents = [topics[name] for name in sorted(topics)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(documents, trainer)
    texts, tokenizer_file = FOLDER / "texts.jsonl", FOLDER / "tokenizer.json"
    tokenizer.save(str(tokenizer_file))
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents * REPEATS))
    return texts, tokenizer_file


def _peer(texts: Path, tokenizer_file: Path, method: str) -> list[str]:
    return [sys.executable, str(SCRIPTS / "encode_batch.py"), str(texts), str(tokenizer_file), method]


def _run(command: list[str]) -> dict[str, Any]:
    """Run a command; return the JSON object on the last line of its output."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _write_sparse(path: Path, size_bytes: int) -> None:
    """Write a sparse file of zeros, and its sidecar."""
    path.touch()
    os.truncate(path, size_bytes)
    blocks, rest = divmod(size_bytes, BLOCK_BYTES)
    hashes = blocks * hashlib.sha256(bytes(BLOCK_BYTES)).hexdigest()
    sidecar = TokenSidecar(
        dtype="uint16",
        offset_bytes=0,
        count=size_bytes // 2,
        largest_id=0,
        largest_id_position=0,
        file_bytes=size_bytes,
        modified_ns=path.stat().st_mtime_ns,
        sha256="0" * 64,
        block_sha256=hashes + (hashlib.sha256(bytes(rest)).hexdigest() if rest else ""),
    )
    sidecar_path(path).write_text(sidecar.model_dump_json(exclude_none=True))
