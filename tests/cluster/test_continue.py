"""Jobs that start from another job's checkpoint: the same bits as in one go, whatever is killed at the start."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos import jobs_pb2 as jobs
from services.checkpoints.read import read_checkpoint
from services.protocol.checksums import set_checksum
from tests.support.cluster.bits import (
    CHECKPOINT_EVERY,
    STEPS,
    Bits,
    bits,
    gpt_config,
    regression_config,
    spec_of,
    write_config,
)
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually, tiermesh
from tests.support.cluster.harness import Cluster

pytestmark = pytest.mark.long  # tests of the parts run in `make test`

HALF = STEPS // 2


@pytest.fixture(scope="module")
def half_spec(corpus: Path) -> str:
    """Return the first half of the job that `undisturbed` ran in one go."""
    return spec_of(corpus.parent, gpt_config(corpus, max_steps=HALF))


def run(cluster: Cluster, *words: object) -> tuple[int, dict[str, Any], str]:
    """Run a command; return its exit code, result and errors."""
    done = tiermesh(*words, "--json", "--aggregator", cluster.to_aggregator.address)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


def stored_sha256(cluster: Cluster, job: str, step: int, file: str) -> str:
    path = cluster.checkpoint(job, step) / file
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("tiers", "shards"),
    [(3, 0), pytest.param(2, 0), pytest.param(2, 2)],
)
def test_two_halves_give_the_bits_of_the_whole(
    tmp_path: Path, half_spec: str, undisturbed: Bits, tiers: int, shards: int
) -> None:
    with Cluster(tmp_path, tiers=tiers, shards=shards, workers=2) as cluster:
        first = cluster.finish(cluster.submit(half_spec))
        code, second, errors = run(cluster, "continue", first.id, "--steps", STEPS, "--follow")
        assert code == 0, errors
        assert second["job"] != first.id and second["started_from"] == f"{first.id}:{HALF}"
        assert bits(cluster.job(second["job"])) == undisturbed
        assert cluster.job(first.id) == first, "the record of the job that had ended says what it said"
        steps = cluster.saved_steps(second["job"])
        assert (steps[0], steps[-1]) == (HALF, STEPS)
        assert read_checkpoint(cluster.checkpoint(second["job"], HALF)).job == second["job"]


@pytest.mark.parametrize(("tiers", "shards"), [(3, 0), (2, 0), (2, 2)])
def test_a_cancelled_job_goes_on_from_its_last_step(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits, tiers: int, shards: int
) -> None:
    last = CHECKPOINT_EVERY + 1
    with Cluster(tmp_path, tiers=tiers, shards=shards, workers=2, steps=last) as cluster:
        first = cluster.submit(gpt_spec)
        cluster.wait_step(first, last)
        code, cancelled, errors = run(cluster, "cancel", first)
        assert code == 0 and cancelled["state"] == "cancelled", errors
        eventually(lambda: cluster.saved_steps(first)[-1] == last, "its last checkpoint")
        eventually(lambda: cluster.job(first).checkpoint_step == last, "the record of it")
        cluster.allow_steps(None)
        code, second, errors = run(cluster, "continue", first, "--steps", STEPS, "--follow")
        assert code == 0 and second["started_from"] == f"{first}:{last}", errors
        assert bits(cluster.job(second["job"])) == undisturbed


@pytest.mark.parametrize(("tiers", "shards"), [(3, 0), (2, 2)])
def test_a_daemon_that_is_stopped_saves_the_last_step(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits, tiers: int, shards: int
) -> None:
    last = CHECKPOINT_EVERY + 1
    with Cluster(tmp_path, tiers=tiers, shards=shards, workers=2, steps=last) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, last)
        stopped = cluster.optimizer if tiers == 3 else cluster.aggregator
        assert stopped is not None and stopped.terminate() == 0
        assert cluster.saved_steps(job)[-1] == last
        stopped.start().ready()
        cluster.allow_steps(None)
        ended = cluster.finish(job)
        assert bits(ended) == undisturbed


def test_a_job_that_is_cancelled_now_saves_nothing_more(tmp_path: Path, gpt_spec: str) -> None:
    last = CHECKPOINT_EVERY + 1
    with Cluster(tmp_path, workers=1, steps=last) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, last)
        assert run(cluster, "cancel", job, "--now")[0] == 0
        cluster.allow_steps(None)
        cluster.finish(cluster.submit(gpt_spec))
        assert cluster.saved_steps(job)[-1] == CHECKPOINT_EVERY


HARD = {
    "speedrun": (
        {"scheduler_type": "speedrun", "optimizer": {"type": "AdamW", "amsgrad": True}},
        {
            "max_lr": 0.01,
            "warmup_steps": 4,
            "hold_steps": 4,
            "beta1_start": 0.8,
            "beta1_end": 0.95,
            "beta1_warmup_steps": 9,
        },
    ),
    "cosine": (
        {"scheduler_type": "warmup_cosine", "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9}},
        {"warmup_steps": 8},
    ),
}
"""Sections of training and schedule that change rate and moments before and after the cut."""


@pytest.mark.parametrize("tiers", [2, 3])
@pytest.mark.parametrize("name", HARD)
def test_a_hard_schedule_goes_on_with_the_same_bits(
    tmp_path: Path, corpus: Path, tiers: int, name: str
) -> None:
    training, schedule = HARD[name]
    config = gpt_config(corpus, total_steps=STEPS)
    config["training_config"] |= training
    config["scheduler_config"] = schedule
    whole = spec_of(tmp_path, config)
    config["training_config"]["max_steps"] = HALF
    half = spec_of(tmp_path, config)
    with Cluster(tmp_path / "cluster", tiers=tiers, workers=1) as cluster:
        expected = bits(cluster.finish(cluster.submit(whole)))
        first = cluster.finish(cluster.submit(half)).id
        code, second, errors = run(cluster, "continue", first, "--steps", STEPS, "--follow")
        assert code == 0, errors
        assert bits(cluster.job(second["job"])) == expected


@pytest.mark.parametrize(
    ("tiers", "failpoint"),
    [
        (3, "checkpoint.before-rename"),
        (3, "checkpoint.before"),
        (3, "checkpoint.mid-file"),
        (3, "checkpoint.after-rename"),
        (2, "checkpoint.before-rename"),
        (2, "checkpoint.after-rename"),
    ],
)
def test_a_kill_amid_the_start_changes_no_bits(
    tmp_path: Path, half_spec: str, undisturbed: Bits, tiers: int, failpoint: str
) -> None:
    role = "optimizer" if tiers == 3 else "aggregator"
    plans: Iterator[str] = iter(["", f"{failpoint}=kill@1"])

    def failpoints(each: str) -> str:
        return next(plans, "") if each == role else ""

    with Cluster(tmp_path, tiers=tiers, workers=1, failpoints=failpoints) as cluster:
        restart = cluster.start_optimizer if tiers == 3 else cluster.start_aggregator
        first = cluster.finish(cluster.submit(half_spec)).id
        cluster.serving(role).terminate()
        restart()
        with ThreadPoolExecutor() as threads:  # the command may have its answer only after the restart
            continuing = threads.submit(run, cluster, "continue", first, "--steps", STEPS)
            assert cluster.serving(role).ended() == -9, "it was killed"
            restart()
            second = continuing.result(LIMIT_SECONDS)[1]["job"]
        assert bits(cluster.finish(second)) == undisturbed
        assert not list(cluster.checkpoints(second).glob(".*")), "nothing half made is left"


def test_a_new_job_starts_from_weights_and_state_or_weights_alone(tmp_path: Path) -> None:
    momentum = {"type": "SGD", "lr": 0.01, "momentum": 0.9}
    with Cluster(tmp_path / "cluster", tiers=3, workers=1) as cluster:
        earlier = spec_of(tmp_path, regression_config(optimizer=momentum, model_save_interval=2))
        first = cluster.finish(cluster.submit(earlier))
        *_, before, last = cluster.saved_steps(first.id)
        other = regression_config(
            project_name="other", seed=3, batch_size=4, max_steps=3, optimizer={**momentum, "lr": 0.001}
        )
        path = write_config(tmp_path, other)
        code, both, errors = run(cluster, "submit", path, "--from", first.id, "--follow")
        assert code == 0, errors
        code, alone, errors = run(
            cluster,
            "submit",
            path,
            "--from",
            f"{first.id}:{before}",
            "--set",
            "start_from.optimizer=false",
            "--follow",
        )
        assert code == 0, errors
        assert (both["step"], both["started_from"]) == (3, f"{first.id}:{last}")
        assert (alone["step"], alone["started_from"]) == (3, f"{first.id}:{before}")
        for job, step in ((both["job"], last), (alone["job"], before)):
            model = stored_sha256(cluster, first.id, step, "model.safetensors")
            assert stored_sha256(cluster, job, 0, "model.safetensors") == model
        taken = read_checkpoint(cluster.checkpoint(both["job"], 0)).optimizer_state
        begun = read_checkpoint(cluster.checkpoint(alone["job"], 0)).optimizer_state
        assert taken["applied"][0] == last and taken["momentum_buffer"].any()
        assert begun["applied"][0] == 0 and not begun["momentum_buffer"].any()

        code, _, errors = run(cluster, "prune", first.id, "--yes")
        assert code == 0, errors
        code, _, errors = run(cluster, "download", both["job"], tmp_path / "out", "--step", "0")
        assert code == 0, f"the new job's start is its own: {errors}"


def test_a_repeated_request_makes_one_job_and_a_damaged_one_none(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", tiers=2, workers=1) as cluster:
        first = cluster.finish(cluster.submit(spec_of(tmp_path, regression_config()))).id
        request = jobs.ContinueRequest(job=first, steps=7, request_id="r")
        ids = {cluster.stub.Continue(request, timeout=LIMIT_SECONDS).id for _ in range(2)}
        assert len(ids) == 1
        cluster.finish(ids.pop())
        set_checksum(request, b"")
        request.steps = 8
        with pytest.raises(grpc.RpcError) as caught:
            cluster.stub.Continue(request, timeout=LIMIT_SECONDS)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details().startswith("ContinueRequest is damaged: crc32c")


def test_a_start_that_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", tiers=2, workers=1) as cluster:
        first = cluster.finish(cluster.submit(spec_of(tmp_path, regression_config()))).id

        def refused(*words: object) -> str:
            code, _, errors = run(cluster, *words)
            assert (code, len(errors.splitlines())) == (2, 1), errors
            return errors

        def submit(*words: object, **training: Any) -> str:
            path = write_config(tmp_path, regression_config(**training))
            return refused("submit", path, *words)

        assert "expected more; raise it (`--steps`" in refused("continue", first, "--steps", 5)
        assert "no job 'nobody'" in refused("continue", "nobody", "--steps", 10)
        assert "has no intact checkpoint of step 3" in refused("continue", first, "--steps", 9, "--step", 3)
        assert "it has those of steps: 0, 5" in submit("--from", f"{first}:4")
        assert "start_from.step" in submit("--from", f"{first}:last")
        assert "start_from.job" in submit("--from", "../elsewhere")
        line = submit("--from", first, "--set", "linear_regression_config.num_features=8")
        assert f"num_features: 8 given, but job {first}" in line and "has 64; write 64" in line
        adamw = {"type": "AdamW", "lr": 0.01}
        assert "training_config.optimizer.type" in submit("--from", first, optimizer=adamw)
        cluster.serving("worker").terminate()
        waiting = cluster.submit(spec_of(tmp_path, regression_config()))
        assert f"job {waiting} is running, expected one that has ended" in refused(
            "continue", waiting, "--steps", 9
        )
