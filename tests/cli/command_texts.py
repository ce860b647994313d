"""Every text that the command prints for its help and for its main wrong inputs, as one list to read.

python -m tests.cli.command_texts     writes tests/cli/golden/texts.txt

Each text is listed at 80 and at 200 columns. The test in test_command_texts.py compares the list. A change of wording
is a diff of one file, and the reviewer reads the texts side by side. Paths, ports and temporary folders are replaced
by words.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cli.main import main, tiermesh
from protos import jobs_pb2
from tests.cli.conftest import JOB
from tests.support.fake_aggregator import FakeAggregator, metrics_rows, serving
from tests.support.tt_train_weights import pack_entries, parameter_entries
from training.data.tokenizer import build_character_tokenizer

GOLDEN = Path(__file__).with_name("golden") / "texts.txt"
WIDTHS = (80, 200)
"""Columns of a terminal at which the texts are listed; twice where they differ."""
NOBODY = "localhost:1"
"""An address at which nothing listens."""

WRONG_INPUTS = (
    "nonsense",
    "lokal job.yaml",
    "certs isue",
    "certs issue box lb",
    "local",
    "local missing.yaml",
    "local job.yaml --workers 0",
    "local job.yaml --workers two",
    "local job.yaml --resume max_steps=3",
    "local job.yaml --tiers 4",
    "local job.yaml --tiers 3 --shards 2",
    "local job.yaml --set max_steps",
    "local job.yaml --set max_step=3",
    "local job.yaml --timeline timelines --timeline-steps 9-3",
    "local job.yaml --timeline job.yaml",
    "local job.yaml --state-dir job.yaml",
    "local job.yaml --config options.yaml",
    "local job.yaml --config nested.yaml",
    "launch",
    "launch missing --config job.yaml --dry-run",
    "launch . --config job.yaml --dry-run",
    "launch . elsewhere --config job.yaml --dry-run",
    "launch --hosts a,a --config job.yaml --dry-run",
    "worker --listen nowhere",
    "worker --aggregator nowhere",
    "worker --listen 0.0.0.0:0",
    "completion fish",
    "worker --log-level loud",
    "worker --log-format xml",
    "worker --tensor-port 70000",
    "worker --tls-cert missing.pem",
    "aggregator --timeout stall",
    "aggregator --timeout lunch=900",
    "aggregator --heartbeat-seconds 0",
    "aggregator --retain logs=30d",
    "aggregator --retain logs.keep=1 --retain logs.keep=2",
    "aggregator --retain jobs.older-than=30",
    "aggregator --shard --standby",
    "aggregator --optimizer localhost:7071 --shards localhost:7072",
    "optimizer --state-dir job.yaml --listen 127.0.0.1:0",
    "submit missing.yaml",
    f"submit job.yaml --aggregator {NOBODY}",
    f"submit job.yaml --aggregator {NOBODY},localhost:2 --timeout-seconds 2",
    "submit job.yaml --aggregator nowhere",
    "submit job.yaml --aggregator AGGREGATOR --tls-cert missing.pem",
    "continue",
    "continue job-9 --steps 20 --aggregator AGGREGATOR",
    "continue job-1 --steps 0 --aggregator AGGREGATOR",
    "jobs extra",
    "jobs --aggregator AGGREGATOR --timeout-seconds 0",
    "jobs --aggregator EMPTY",
    "jobs --aggregator AGGREGATOR",
    "jobs --state queued --named tin --aggregator AGGREGATOR",
    "jobs --owner nobody --aggregator AGGREGATOR",
    "jobs --state asleep",
    "status --aggregator AGGREGATOR",
    "status --aggregator EMPTY",
    "status job-1 --aggregator AGGREGATOR",
    "status job-9 --aggregator AGGREGATOR",
    "status job --aggregator AGGREGATOR",
    "status latest --aggregator AGGREGATOR",
    "logs job-1 --tail 1 --aggregator AGGREGATOR",
    "logs job-1 --tail 0 --aggregator AGGREGATOR",
    "logs job-9 --aggregator AGGREGATOR",
    "metrics job-1 --aggregator AGGREGATOR",
    "metrics job-1 --aggregator AGGREGATOR --csv",
    "metrics job-2 --aggregator EMPTY",
    "metrics job-1 --points 20000",
    "metrics job-1 --from -1",
    "plot",
    "plot job-1 -o loss.png",
    "plot job-1 --columns los",
    "plot ./missing",
    "plot tokenizer",
    "plot job-1 --columns loss --aggregator AGGREGATOR",
    "cancel job-9 --aggregator AGGREGATOR",
    "queue --aggregator AGGREGATOR",
    "queue --aggregator EMPTY",
    "queue empty",
    "pause job-1 --aggregator AGGREGATOR",
    "pause job-9 --aggregator AGGREGATOR",
    "resume job-9 --aggregator AGGREGATOR",
    "resume job-1 --aggregator AGGREGATOR",
    "priority job-1 -5 --aggregator AGGREGATOR",
    "priority job-9 5 --aggregator AGGREGATOR",
    "priority job-1 101 --aggregator AGGREGATOR",
    "priority job-1 high --aggregator AGGREGATOR",
    "priority job-1 --aggregator AGGREGATOR",
    "trust job-1",
    "trust job-9 lb-1 --aggregator AGGREGATOR",
    "trust job-1 lb-9 --aggregator AGGREGATOR",
    "trust job-1 lb-1 --aggregator AGGREGATOR",
    "download job-9 out --aggregator AGGREGATOR",
    "download job-1 job.yaml --aggregator AGGREGATOR",
    "download job-1 out --aggregator AGGREGATOR",
    "download job-2 out --aggregator AGGREGATOR --step 7",
    "prune",
    "prune job-9 --dry-run --aggregator AGGREGATOR",
    "prune --older-than 30 --dry-run",
    "prune --older-than -1d --dry-run",
    "prune --max-bytes 100 --dry-run",
    "prune --max-bytes 1XB --dry-run",
    "prune --keep -1 --dry-run",
    "prune --keep 0 --only weights",
    "prune --keep 0 --dry-run --aggregator EMPTY",
    "prune --keep 1 --only checkpoints --dry-run --aggregator AGGREGATOR",
    "prune job-2 --yes --aggregator AGGREGATOR",
    "tokenize",
    "tokenize job.yaml",
    "tokenize job.yaml --tokenizer missing -o ids.bin",
    "tokenize job.yaml --tokenizer job.yaml -o ids.bin",
    "tokenize job.yaml --tokenizer job.yaml -o ids.npy",
    "tokenize job.yaml --tokenizer job.yaml -o missing/ids.bin",
    "tokenize missing.txt --tokenizer tokenizer -o ids.bin",
    "tokenize job.yaml --tokenizer tokenizer -o tokenizer/ids.bin",
    "tokenize job.yaml --tokenizer tokenizer -o tokenizer/ids.bin --end-of-text end",
    "import-weights",
    "import-weights job.yaml",
    "import-weights missing.msgpack model.yaml -o weights",
    "import-weights job.yaml job.yaml -o weights",
    "import-weights job.yaml model.yaml -o weights",
    "import-weights job.yaml model.yaml -o job.yaml",
    "import-weights job.yaml model.yaml -o missing/out",
    "import-weights other.msgpack model.yaml -o weights",
    "import-weights other.msgpack model.yaml -o weights transformer_config.model_type=llama num_groups=2",
    "generate missing",
    "generate . --temperature -1",
    "generate . --top-p 0",
    "validate job.yaml",
    "validate job.yaml --long",
    "validate job.yaml --link 10X",
    "validate job.yaml --set mesh_shape=[2,4]",
    "validate job.yaml --set batch_size=zero",
    "validate job.yaml max_steps",
    "validate job.yaml batch_sise=8",
    "validate job.yaml bias=false",
    "validate job.yaml training_config.learning_steps=8",
    "validate job.yaml training_config.zzz=8",
    "validate job.yaml training_config.num_heads=8",
    "validate job.yaml logging_interval=50",
    "validate job.yaml training_config.grpo_config={}",
    "validate job.yaml device_config.enable_sp=true",
    "validate job.yaml micro_batch_size=3",
    "measure job.yaml",
    "measure job.yaml --passes 0",
    "check",
    "check --mesh --mesh-shape 8",
    "check --mesh --backend cuda",
    "chaos job.yaml --faults -1",
    "chaos job.yaml --state-dir job.yaml",
    "timeline missing",
    "timeline .",
)


OPTIONS_YAML = "workers: 2\nworkrs: 3\n"
MODEL_YAML = "training_config: {data_path: text.txt}\ntransformer_config: {num_blocks: 1, num_heads: 4}\n"
NESTED_YAML = "workers: {most: 2}\n"


def render() -> str:
    """Return the list: each command line, its exit code, and what it prints."""
    narrow, wide = map(_render, WIDTHS)
    blocks = []
    for first, second in zip(narrow, wide, strict=True):
        if first == second:
            blocks.append(first)
        else:
            for block, width in ((first, WIDTHS[0]), (second, WIDTHS[1])):
                line, _, text = block.partition("\n")
                blocks.append(f"{line} at {width} columns\n{text}")
    return "\n".join(blocks)


def _render(width: int) -> list[str]:
    for name in [name for name in os.environ if name.startswith("TIERMESH_")]:
        del os.environ[name]
    os.environ["COLUMNS"] = str(width)  # of the help
    os.environ["TZ"] = "UTC"
    blocks = [_block("--help"), *(_block(f"{name} --help") for name in tiermesh.load_all())]
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(_filled()) as filled,
        serving(FakeAggregator()) as empty,
    ):
        os.chdir(folder)
        Path("job.yaml").write_text(JOB)
        Path("options.yaml").write_text(OPTIONS_YAML)
        Path("nested.yaml").write_text(NESTED_YAML)
        Path("model.yaml").write_text(MODEL_YAML)
        Path("text.txt").write_text(JOB * 10)
        norm = {"transformer/ln_fc/gamma": np.ones(128, np.float32)}
        Path("other.msgpack").write_bytes(pack_entries(parameter_entries("transformer", norm)))
        Path("tokenizer").mkdir()
        Path("tokenizer/tokenizer.json").write_text(build_character_tokenizer(JOB).to_json())
        addresses = {"AGGREGATOR": filled.address, "EMPTY": empty.address}
        blocks += [_block(line, addresses) for line in WRONG_INPUTS]
        os.chdir("/")
    return blocks


def _filled() -> FakeAggregator:
    """Return an aggregator with a running job, and a cluster that waits for a peer."""
    fake = FakeAggregator()
    fake.jobs["job-1"] = jobs_pb2.Job(
        id="job-1", name="tiny", state=jobs_pb2.RUNNING, phase="train", step=4, steps=10, loss=2.5,
        submitted_seconds=time.time() - 885_600, started_seconds=time.time() - 864_000,
        checkpoint="/state/job-1/step-00000002", checkpoint_step=2,
        tokens_per_second=1000.0, seconds_left=72.0, skipped="step 3: the gradient is not finite",
        min_workers=1, max_workers=8, detail="worker lb-2 was lost",
        excluded=[jobs_pb2.Exclusion(worker="lb-3", step=3, reason="checksum differs")],
        claims=[
            jobs_pb2.Claim(
                fingerprint={"backend": "emulator", "numpy": "2.4"}, layout_hash="a" * 64, elements=104_512,
                claimants=[jobs_pb2.Claimant(worker="lb-1", voice="lb-1")],
            ),
            jobs_pb2.Claim(
                fingerprint={"backend": "emulator", "numpy": "2.3"}, layout_hash="a" * 64, elements=104_512,
                claimants=[jobs_pb2.Claimant(worker="lb-2", voice="lb-2")], contends=True,
            ),
        ],
    )  # fmt: skip
    start = jobs_pb2.Start(job="job-1", step=2)
    fake.jobs["job-2"] = jobs_pb2.Job(
        id="job-2", name="tiny", state=jobs_pb2.QUEUED, steps=10, start=start, position=1, priority=3, min_workers=2,
        max_workers=2, waiting="waits for job job-1 to end", estimated_start_seconds=72.0,
    )  # fmt: skip
    fake.status = jobs_pb2.ClusterStatus(
        epoch=3, tiers=2, leader="agg", optimizer="in the aggregator", running_jobs=["job-1"], waiting="gradients",
        job_waits=["gradients"],
        standbys=[jobs_pb2.Standby(name="agg-2", seconds_since_heard=0.5)],
        shards=[
            jobs_pb2.ShardStatus(index=0, name="shard-1", address="lb-1:7072", seconds_since_heard=0.5),
            jobs_pb2.ShardStatus(index=1, address="lb-2:7072", detail="no connection for 3 s"),
        ],
        workers=[
            jobs_pb2.Member(name="lb-1", state="ready", step=4, micro_batches_per_second=2.0, seconds_since_heard=0.5),
            jobs_pb2.Member(name="lb-2", state="refused", detail="another fingerprint"),
            jobs_pb2.Member(name="lb-5", state="spare"),
            jobs_pb2.Member(name="lb-4", state="computing", row=(3 << 32) + 2, first_stage=1, stages=2,
                            micro_batches_per_second=0.8),
            jobs_pb2.Member(name="lb-3", state="computing", row=(3 << 32) + 2, stages=1, micro_batches_per_second=1.7),
        ],
        waits=[jobs_pb2.Wait(role="worker", peer="lb-1", what="gradient", job="job-1", step=4, bucket=7, seconds=3)],
    )  # fmt: skip
    fake.metrics = [
        metrics_rows(
            2,
            step=[2.0, 4.0],
            loss={"min": [2.75, 2.5], "max": [3.5, 2.625], "mean": [3.125, 2.5625]},
            step_seconds={"min": [0.5, 0.5], "max": [1.0, 0.5], "mean": [0.75, 0.5]},
            compute_seconds={"min": [0.25, 0.375], "max": [0.75, 0.375], "mean": [0.5, 0.375]},
            tokens_per_second={
                "min": [math.nan, 1000.0],
                "max": [math.nan, 1250.0],
                "mean": [math.nan, 1125.0],
            },
            waited_for=["", "lb-1"],
        )
    ]
    fake.files = {"model.safetensors": b"no checkpoint", "state.json": b"{}"}
    ended = jobs_pb2.Job(id="job-2", name="tiny", state=jobs_pb2.SUCCEEDED, ended_seconds=1e9)
    fake.prunable = [
        jobs_pb2.PrunedJob(job=ended, bytes=1_234_567, checkpoints=3),
        jobs_pb2.PrunedJob(job=ended, kept="job job-1 starts from its checkpoint of step 5"),
    ]
    return fake


def _block(line: str, addresses: Mapping[str, str] | None = None) -> str:
    """Run a command line; return it with its exit code and its output."""
    words = shlex.split(line)
    for word, address in (addresses or {}).items():
        words = [address if each == word else each for each in words]
    # A file, not io.StringIO: daemons ask for the descriptor of standard error.
    with tempfile.TemporaryFile("w+") as output:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = main(words)
        output.seek(0)
        text = output.read()
    for word, address in (addresses or {}).items():
        text = text.replace(address, word)
    text = re.sub(r"^.* INFO .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\d{4}-\S+(?= ERROR)", "TIME", text, flags=re.MULTILINE)
    text = text.replace(str(Path.cwd()), "FOLDER")
    text = re.sub(r"(?<=  )\d\d:\d\d:\d\d(?=, )", "HH:MM:SS", text)
    text = re.sub(r"of text in [\d.]+ s", "of text in SECONDS s", text)
    text = re.sub(r"\.download-\w+", ".download-TEMPORARY", text)
    indented = "".join(f"    {each}".rstrip() + "\n" for each in text.splitlines())
    return f"$ tiermesh {line}    -> {code}\n{indented}"


if __name__ == "__main__":
    text = render()
    if sys.argv[1:] == ["--print"]:
        print(text, end="")
    else:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
