"""Workers whose data is not what the job was submitted with: refused by name before the first step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import gpt_config, spec_of
from tests.support.cluster.daemon import LIMIT_SECONDS
from tests.support.cluster.harness import ENDED, Cluster
from training.data.tokenizer import build_character_tokenizer

pytestmark = pytest.mark.long  # tests of the parts run in `make test`

VOCABULARY = 50
STEPS, ENDLESS = 3, 100_000
CHANGED = {
    "ids": ("training_config.data_path", "ids.u16.bin", "block 2 (ids 1048576 to 1199999) has sha256"),
    "text": ("training_config.data_path", "corpus.txt", "has sha256"),
    "tokenizer": ("training_config.tokenizer_path", "tokenizer.json", "has sha256"),
    "start": ("transformer_config.model_path", "model.safetensors", "has sha256"),
}
"""By the input that differs: the setting and the file that are named, and what is said of it."""


def config_of(client: Path, kind: str, steps: int = STEPS) -> dict[str, Any]:
    """Return a job whose files lie in the client's folder."""
    corpus = client / ("corpus.txt" if kind == "text" else "other.txt")
    config = gpt_config(corpus, project_name=kind, max_steps=steps, gradient_accumulation_steps=2)
    training = config["training_config"]
    if kind == "ids":
        del training["tokenizer_type"]
        training["data_path"] = str(client / "ids.u16.bin")
        config["transformer_config"]["vocab_size"] = VOCABULARY
    if kind == "tokenizer":
        training |= {"tokenizer_type": "bpe", "tokenizer_path": str(client / "tokenizer.json")}
    if kind == "start":
        training |= {"tokenizer_type": "bpe", "tokenizer_path": str(client / "other.json")}
        config["transformer_config"] |= {"model_path": str(client / "start")}
    return config


def change(path: Path) -> None:
    """Change the last byte of a file, which training reads at its end: those tokens are held out."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.fixture(params=[2, 3])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, tiers=request.param) as cluster:
        yield cluster


@pytest.fixture
def specs(cluster: Cluster, corpus: Path, tmp_path: Path) -> dict[str, str]:
    """Return an endless job for each kind of input; their files are in `good`, and changed in `changed`."""
    client = tmp_path / "client"
    client.mkdir()
    for name in ("corpus.txt", "other.txt"):
        shutil.copy(corpus, client / name)
    for name in ("tokenizer.json", "other.json"):
        (client / name).write_text(build_character_tokenizer(corpus.read_text()).to_json())
    np.random.default_rng(1).integers(0, VOCABULARY, 1_200_000).astype("<u2").tofile(client / "ids.u16.bin")
    worker = cluster.start_worker(name="first")
    first = cluster.finish(cluster.submit(spec_of(client, config_of(client, "tokenizer"))))
    worker.kill()
    shutil.copytree(first.checkpoint, client / "start")
    specs = {kind: spec_of(client, config_of(client, kind, ENDLESS)) for kind in CHANGED}
    client.rename(tmp_path / "good")
    shutil.copytree(tmp_path / "good", tmp_path / "changed")
    for name in ("ids.u16.bin", "corpus.txt", "tokenizer.json", "start/model.safetensors"):
        change(tmp_path / "changed" / name)
    return specs


def test_a_worker_with_changed_data_takes_no_part(
    cluster: Cluster, specs: dict[str, str], tmp_path: Path
) -> None:
    cluster.start_worker("--data", tmp_path / "changed", name="changed")
    for kind, (field, file, found) in CHANGED.items():
        job = cluster.submit(specs[kind])
        ended = cluster.wait(job, lambda each: each.state in ENDED, "its end")
        assert (ended.state, ended.step) == (jobs.FAILED, 0), kind
        for text in ("changed: ", field, file, found):
            assert text in ended.detail, (kind, ended.detail)
    cluster.start_worker("--data", tmp_path / "good", name="good")
    cluster.wait_workers(2)
    for kind, spec in specs.items():
        job = cluster.submit(spec)
        cluster.wait_step(job, STEPS)
        if kind != "start":  # one worker alone reads that, and it may be the other one
            log = cluster.stub.Logs(jobs.LogsRequest(job=job, follow=True), timeout=LIMIT_SECONDS)
            refusal = "worker changed takes no part in the job: training_config"
            assert any(refusal in line.text for line in log), "the log ended"
        cluster.stub.Cancel(jobs.CancelRequest(job=job), timeout=LIMIT_SECONDS)


def test_a_changed_file_of_the_data_dir_is_not_served(tmp_path: Path) -> None:
    client, data = tmp_path / "client", tmp_path / "data"
    client.mkdir()
    data.mkdir()
    np.random.default_rng(1).integers(0, VOCABULARY, 5000).astype("<u2").tofile(client / "ids.u16.bin")
    served = Path(shutil.copy(client / "ids.u16.bin", data))
    os.utime(served, (1, 1))
    with Cluster(tmp_path, aggregator_options=("--data-dir", data)) as cluster:
        job = cluster.submit(spec_of(client, config_of(client, "ids")))
        change(served)
        os.utime(served, (2, 2))
        client.rename(tmp_path / "elsewhere")
        cluster.start_worker("--cache-dir", tmp_path / "cache", wait=False)
        cluster.wait_workers(1, "unfit")
        (worker,) = cluster.status().workers
        assert "training_config.data_path: no such file on this host" in worker.detail
        assert "aggregator aggregator does not have it" in worker.detail
        shutil.copy(tmp_path / "elsewhere" / "ids.u16.bin", served)
        os.utime(served, (3, 3))
        cluster.aggregator.kill()  # the next one scans at once
        cluster.start_aggregator()
        cluster.finish(job)
