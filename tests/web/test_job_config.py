"""What a submission would make, what a job was submitted as, and the meshes of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protos import jobs_pb2
from services.config.job import JobConfig
from services.config.job_parts import CodeConfig
from services.config.load import load_job_document
from services.config.models import CustomConfig
from tests.support.fake_aggregator import FakeAggregator
from tests.support.web_server import Web
from tests.web.test_files import CORPUS, put, sha256

GPT: dict[str, Any] = {
    "training_config": {"data_path": "corpus.txt", "max_steps": 7, "batch_size": 8, "min_workers": 2},
    "transformer_config": {"num_heads": 2, "embedding_dim": 64, "num_blocks": 4, "max_sequence_length": 32},
    "device_config": {"mesh_shape": [[2, 4], ["tp", "ddp"]]},
}
PIPELINE = {"enabled": True, "num_workers": 4, "pipeline_parallel_config": {"blocks_per_rank": {0: 1, 1: 3}}}


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    (tmp_path / "corpus.txt").write_bytes(CORPUS)
    return load_job_document(GPT, folder=tmp_path)[0]


def test_a_submission_is_checked_without_a_job(web: Web, fake: FakeAggregator) -> None:
    missing = web.call("POST", "/v1/jobs/check", {"config": GPT})
    assert (missing.status, missing.kind) == (422, "missing-file")
    put(web, CORPUS)
    submission = {"config": GPT, "files": {"corpus.txt": sha256(CORPUS)}}
    takes = web.call("POST", "/v1/jobs/check", submission).json["takes"]
    assert (takes["steps"], takes["tokens_per_step"], takes["tokens"]) == (7, 8 * 32, 7 * 8 * 32)
    assert takes["model_bytes"] == 4 * takes["parameters"] > 0
    assert (takes["verdict"], takes["chip_bytes"] < takes["chip_has_bytes"]) == ("fits", True)
    assert (takes["min_workers"], takes["mesh_shape"], takes["stages"]) == (2, [2, 4], 1)
    assert (takes["data_parallel"], takes["tensor_parallel"]) == (4, 2)
    refused = web.call(
        "POST", "/v1/jobs/check", {**submission, "overrides": {"training_config.max_steps": -1}}
    )
    assert (refused.status, refused.json["field"]) == (422, "training_config.max_steps")
    assert fake.submitted == []


def test_a_pipelines_stages_and_what_too_large_a_model_needs(web: Web) -> None:
    put(web, CORPUS)
    files = {"corpus.txt": sha256(CORPUS)}
    staged = {**GPT, "multihost_config": PIPELINE}
    takes = web.call("POST", "/v1/jobs/check", {"config": staged, "files": files}).json["takes"]
    assert (takes["stages"], takes["schedule"], takes["bubble"] > 0) == (2, "1f1b", True)
    large = {"embedding_dim": 16384, "num_blocks": 96, "num_heads": 128}
    config = {**GPT, "transformer_config": large}
    takes = web.call("POST", "/v1/jobs/check", {"config": config, "files": files}).json["takes"]
    assert (takes["verdict"], takes["chip_bytes"] > takes["chip_has_bytes"]) == ("will be refused", True)


def test_what_only_workers_know_is_null(web: Web) -> None:
    put(web, CORPUS)
    own = {
        "training_config": {"model_type": "mixer:Mixer", "data_path": "corpus.txt"},
        "transformer_config": {},
    }
    takes = web.call("POST", "/v1/jobs/check", {"config": own, "files": {"corpus.txt": sha256(CORPUS)}})
    assert [takes.json["takes"][name] for name in ("parameters", "model_bytes", "verdict", "chip_bytes")] == [
        None
    ] * 4


def test_a_job_tells_what_makes_another_one_like_it(
    web: Web, fake: FakeAggregator, config: JobConfig
) -> None:
    put(web, CORPUS)
    fake.specs["job-1"] = config.to_json()
    found = web.get("/v1/jobs/job-1/config").json
    assert found["settings"]["training_config.max_steps"] == 7
    assert found["takes"]["tokens_per_step"] == 8 * 32
    assert "<b>mark" in found["config"]  # the name that the job was given
    submission = {name: found[name] for name in ("config", "overrides", "files", "code")}
    assert [*found["files"].values()] == [sha256(CORPUS)]
    answer = web.call("POST", "/v1/jobs", submission)
    assert answer.status == 201, answer.body
    again = JobConfig.from_json(fake.submitted[0].spec_json)
    assert again.model_copy(update={"name": config.name}) == config
    assert fake.submitted[0].name == "<b>mark"


def test_code_goes_by_its_hash(web: Web, fake: FakeAggregator, config: JobConfig) -> None:
    code = CodeConfig(path="/home/ann/mixer", sha256="0" * 64)
    own = config.model_copy(update={"model": CustomConfig(model_type="mixer:Mixer"), "code": code})
    fake.specs["job-1"] = own.to_json()
    found = web.get("/v1/jobs/job-1/config").json
    assert found["code"] == {"path": "/home/ann/mixer", "sha256": "0" * 64}
    assert "mixer:Mixer" in found["config"] and "/home/ann" not in found["config"]


def test_workers_of_a_job_have_its_mesh(web: Web, fake: FakeAggregator, config: JobConfig) -> None:
    fake.specs["job-1"] = config.to_json()
    fake.jobs["job-2"] = jobs_pb2.Job(id="job-2")
    for name, job in (("a", "job-1"), ("b", ""), ("c", "gone")):
        fake.status.workers.add(name=name, job=job)
    for _ in range(2):
        found = {
            each["name"]: (each["mesh"], each["axes"]) for each in web.get("/v1/cluster").json["workers"]
        }
        assert found == {"a": ([2, 4], {"tp": 2, "dp": 4}), "b": (None, None), "c": (None, None)}
        assert list(found["a"][1]) == ["tp", "dp"], "rows first"
        fake.specs.clear()  # which is asked for once


def test_jobs_come_oldest_first_if_asked_for(web: Web, fake: FakeAggregator) -> None:
    fake.jobs["job-2"] = jobs_pb2.Job(id="job-2")
    found = [job["job"] for job in web.get("/v1/jobs?order=oldest").json["jobs"]]
    assert found == ["job-1", "job-2"]
    assert web.get("/v1/jobs?order=random").json["field"] == "order"
