"""Jobs whose model's files are larger than a message: real processes, killed amid the transfers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from protos import jobs_pb2 as jobs
from services.config.job import MOST_SPEC_BYTES
from tests.support.cluster.bits import gpt_config, spec_of
from tests.support.cluster.daemon import LIMIT_SECONDS, Daemon
from tests.support.cluster.harness import Cluster
from training.data.tokenizer import build_character_tokenizer

pytestmark = pytest.mark.long  # tests of the parts run in `make test`

TOKEN_CHARACTERS, LONG_TOKENS = 20_000, 300
"""Tokens that never occur make a tokenizer.json of 6 MB, without a large model."""
MODEL = "tests.support.cluster.deadly_model"


def large_tokenizer(corpus: Path) -> Path:
    """Write a tokenizer of the corpus's characters that is larger than a message; return its path."""
    content = json.loads(build_character_tokenizer(corpus.read_text()).to_json())
    words = content["model"]["vocab"]
    for number in range(LONG_TOKENS):
        words[f"{number:0{TOKEN_CHARACTERS}d}"] = len(words)
    path = corpus.parent / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path


def job_spec(corpus: Path) -> str:
    path = large_tokenizer(corpus)
    return spec_of(
        corpus.parent,
        gpt_config(
            corpus,
            project_name="large-tokenizer",
            tokenizer_type="bpe",
            tokenizer_path=str(path),
            max_steps=2,
            gradient_accumulation_steps=2,
        ),
    )


def check_tokenizer(corpus: Path, ended: jobs.Job) -> None:
    """Check that the checkpoint has the whole tokenizer."""
    kept = json.loads((Path(ended.checkpoint) / "tokenizer.json").read_text())
    assert (
        kept["model"]["vocab"] == json.loads((corpus.parent / "tokenizer.json").read_text())["model"]["vocab"]
    )


def restart_when_it_dies(daemon: Daemon, restart: Callable[[], object]) -> None:
    assert daemon.process.wait(LIMIT_SECONDS) < 0, "it was to be killed at the failpoint"
    restart()


@pytest.mark.parametrize(
    ("tiers", "shards"),
    [
        pytest.param(2, 0, id="2 tiers"),
        pytest.param(3, 0, id="3 tiers"),
        pytest.param(2, 2, id="shards"),
    ],
)
def test_a_tokenizer_larger_than_a_message_trains_to_the_end(
    tmp_path: Path, corpus: Path, tiers: int, shards: int
) -> None:
    with Cluster(tmp_path, tiers=tiers, shards=shards, workers=2) as cluster:
        ended = cluster.finish(cluster.submit(job_spec(corpus)))
        check_tokenizer(corpus, ended)


@pytest.mark.parametrize(
    ("tiers", "role"), [(2, "aggregator"), (3, "aggregator"), (3, "optimizer")], ids=lambda each: str(each)
)
def test_a_process_killed_amid_an_upload_continues_it(
    tmp_path: Path, corpus: Path, tiers: int, role: str
) -> None:
    killed: list[str] = []

    def failpoints(started: str) -> str:
        if started != role or role in killed:
            return ""
        killed.append(role)
        return "files.mid-write=kill@6"

    with Cluster(tmp_path, tiers=tiers, workers=1, failpoints=failpoints, heartbeat_seconds=1.0) as cluster:
        job = cluster.submit(job_spec(corpus))
        if role == "aggregator":
            restart_when_it_dies(cluster.aggregator, cluster.start_aggregator)
        else:
            assert cluster.optimizer is not None
            restart_when_it_dies(cluster.optimizer, cluster.start_optimizer)
        check_tokenizer(corpus, cluster.finish(job))
        writes = (tmp_path / "failpoints.log").read_text().count("files.mid-write")
        assert writes < 6 + (12 if tiers == 2 else 20), "the upload continued, it did not start over"


def test_a_shard_killed_amid_an_upload_gets_the_files_again(tmp_path: Path, corpus: Path) -> None:
    started: list[str] = []

    def failpoints(role: str) -> str:
        started.append(role)
        return "memory.write=kill@1" if role == "shard" and started.count("shard") == 1 else ""

    with Cluster(tmp_path, shards=2, workers=1, failpoints=failpoints, heartbeat_seconds=1.0) as cluster:
        job = cluster.submit(job_spec(corpus))
        restart_when_it_dies(cluster.shards[0], lambda: cluster.start_shard(0))
        check_tokenizer(corpus, cluster.finish(job))


def test_a_job_with_the_largest_spec_trains_to_the_end(tmp_path: Path, corpus: Path) -> None:
    config = gpt_config(corpus, project_name="large-spec", max_steps=2, gradient_accumulation_steps=2)
    config["transformer_config"] = {
        "model_type": f"{MODEL}:Deadly",
        "max_sequence_length": 32,
        "width": 32,
        "dies": "never",
        "how": "exit",
    }
    spec = json.loads(spec_of(corpus.parent, config))
    spec["model"]["options"]["table"] = "x" * (MOST_SPEC_BYTES - 4096)
    with Cluster(tmp_path, tiers=3) as cluster:
        cluster.start_worker("--allow-models", MODEL)
        ended = cluster.finish(cluster.submit(json.dumps(spec)))
        state = json.loads((Path(ended.checkpoint) / "state.json").read_text())
        assert state["config"]["model"] == spec["model"]
