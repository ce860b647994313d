"""Roles are killed, frozen or cut off during a job, which ends in the bits of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from protos import jobs_pb2 as jobs
from services.timeouts import Timeouts
from tests.support.cluster.bits import CHECKPOINT_EVERY, STEPS, Bits, bits, gpt_config, spec_of, write_config
from tests.support.cluster.daemon import LIMIT_SECONDS, environment, eventually, only_first, tiermesh
from tests.support.cluster.fork_server import ROOT
from tests.support.cluster.harness import ENDED, Cluster

AT_A_STEP = f"optimizer.commit.after=kill@{CHECKPOINT_EVERY + 3}"
"""Kill in the middle of a job, as far as possible from a checkpoint, however fast its steps are."""


def reported_steps(cluster: Cluster, job: str) -> list[int]:
    """Return the steps that the job's log reports, in order."""
    lines = cluster.stub.Logs(jobs.LogsRequest(job=job), timeout=LIMIT_SECONDS)
    reported = [line.text for line in lines]
    return [int(text.partition(",")[0].removeprefix("Step: ")) for text in reported if ", Loss" in text]


def test_a_worker_killed_in_the_middle_of_a_job(tmp_path: Path, gpt_spec: str, undisturbed: Bits) -> None:
    with Cluster(tmp_path, tiers=3, workers=2) as cluster:
        cluster.wait_workers(2)
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 3)
        cluster.workers[0].kill()
        ended = cluster.finish(job)
        assert bits(ended) == undisturbed
        assert reported_steps(cluster, job) == list(range(1, STEPS + 1)), "each step happens once"
        cluster.aggregator.wait_log("worker worker-1 is gone")


@pytest.mark.long
def test_a_worker_killed_while_it_makes_the_initial_weights(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, tiers=3) as cluster:
        first = cluster.start_worker()
        cluster.wait_workers(1)
        cluster.submit(gpt_spec)
        first.kill()
        cluster.start_worker()
        (job,) = cluster.stub.List(jobs.ListRequest(), timeout=LIMIT_SECONDS).jobs
        assert bits(cluster.finish(job.id)) == undisturbed


def test_a_worker_that_joins_in_the_middle_of_a_job(tmp_path: Path, gpt_spec: str, undisturbed: Bits) -> None:
    with Cluster(tmp_path, tiers=3, workers=1) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 2)
        cluster.start_worker(wait=False)
        assert bits(cluster.finish(job)) == undisturbed


@pytest.mark.parametrize("tiers", [pytest.param(2, marks=pytest.mark.long), 3])
def test_the_aggregator_killed_and_restarted(
    tmp_path: Path, tiers: int, gpt_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, tiers=tiers, workers=2, failpoints=only_first("aggregator", AT_A_STEP)) as cluster:
        job = cluster.submit(gpt_spec)
        if tiers == 3:  # that failpoint is the optimizer's
            cluster.wait_step(job, CHECKPOINT_EVERY + 2)
            cluster.aggregator.kill()
        assert cluster.aggregator.ended() == -signal.SIGKILL
        cluster.start_aggregator()
        ended = cluster.finish(job)
        assert bits(ended) == undisturbed
        # In 3 tiers the optimizer kept its weights. In 2 tiers it died with the aggregator.
        assert ended.generation == (1 if tiers == 3 else 2)
        assert cluster.status().epoch == 2


def test_the_optimizer_killed_goes_back_to_its_checkpoint(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, tiers=3, workers=2, failpoints=only_first("optimizer", AT_A_STEP)) as cluster:
        job = cluster.submit(gpt_spec)
        assert cluster.serving("optimizer").ended() == -signal.SIGKILL
        cluster.start_optimizer()
        ended = cluster.finish(job)
        assert bits(ended) == undisturbed
        assert ended.generation == 2
        reported = reported_steps(cluster, job)
        (back,) = [at for at in range(1, len(reported)) if reported[at] <= reported[at - 1]]
        assert reported[back - 1] > CHECKPOINT_EVERY
        assert reported[back] % CHECKPOINT_EVERY == 1, "it continues after a checkpoint"
        cluster.aggregator.wait_log("the optimizer went back to step")


@pytest.mark.long
@pytest.mark.parametrize("tiers", [2, 3])
def test_cut_connections_are_reconnected(
    tmp_path: Path, tiers: int, gpt_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, tiers=tiers, workers=2) as cluster:
        job = cluster.submit(gpt_spec)
        for step, relay in ((3, cluster.to_aggregator), (6, cluster.relays[0])):
            cluster.wait_step(job, step)
            relay.cut()
        ended = cluster.finish(job)
        assert (bits(ended), ended.generation) == (undisturbed, 1)


@pytest.mark.long
def test_a_frozen_worker_loses_its_leases_and_comes_back(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    heartbeat_seconds = 3.0  # longer than a busy machine delays a process
    with Cluster(tmp_path, workers=2, heartbeat_seconds=heartbeat_seconds) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 3)
        frozen = cluster.workers[0]
        frozen.freeze()
        eventually(
            lambda: frozen.name in [each.peer for each in cluster.status().waits], "the wait to be named"
        )
        eventually(
            lambda: cluster.aggregator.metric("tiermesh_wait_seconds", peer=frozen.name) > 1.0, "its metric"
        )
        cluster.aggregator.wait_log(f"worker {frozen.name} is gone: silent for")
        (line,) = [each for each in cluster.aggregator.log_text().splitlines() if "silent for" in each]
        silent_seconds = float(line.partition("silent for ")[2].split()[0])
        assert silent_seconds >= Timeouts.from_heartbeat(heartbeat_seconds).silent
        frozen.thaw()
        eventually(lambda: frozen.log_text().count("connected to aggregator") == 2, "its return")
        ended = cluster.finish(job)
        assert (bits(ended), ended.generation) == (undisturbed, 1)
        assert reported_steps(cluster, job) == list(range(1, STEPS + 1)), (
            "others did its work within the same step"
        )
        cluster.wait_workers(2)


@pytest.mark.long
def test_workers_reconnect_to_a_frozen_aggregator(tmp_path: Path, gpt_spec: str, undisturbed: Bits) -> None:
    with Cluster(tmp_path, tiers=3, workers=1, heartbeat_seconds=0.5) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 3)
        cluster.aggregator.freeze()
        cluster.workers[0].wait_log("silent for")
        cluster.aggregator.thaw()
        ended = cluster.finish(job)
        assert (bits(ended), ended.generation) == (undisturbed, 1)


@pytest.mark.long
def test_a_frozen_optimizer_is_named(tmp_path: Path, gpt_spec: str, undisturbed: Bits) -> None:
    with Cluster(tmp_path, tiers=3, workers=1, heartbeat_seconds=0.5) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 3)
        frozen = cluster.serving("optimizer")
        frozen.freeze()
        eventually(
            lambda: ("optimizer", frozen.name) in [(each.role, each.peer) for each in cluster.status().waits],
            "the wait to be named",
        )
        cluster.aggregator.wait_log(f"waiting for optimizer {frozen.name}: ")
        frozen.thaw()
        assert bits(cluster.finish(job)) == undisturbed


def test_a_submitted_job_survives_kill_9(tmp_path: Path, short_spec: str) -> None:
    with Cluster(tmp_path) as cluster:
        job = cluster.submit(short_spec)
        cluster.aggregator.kill()
        cluster.start_aggregator()
        assert cluster.job(job).state in (jobs.QUEUED, jobs.RUNNING)
        cluster.start_worker()
        cluster.finish(job)


def is_running(process: int) -> bool:
    """Return whether a process has not ended. A zombie has an empty command line."""
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    except OSError:
        return False


def kill_everything(local: subprocess.Popen[str], state: Path) -> None:
    """Kill `tiermesh local` and its daemons with SIGKILL."""
    daemons = [json.loads(path.read_text())["pid"] for path in (state / "logs").glob("*.ready.json")]
    local.send_signal(signal.SIGSTOP)  # so that none ends in another way, once another one is gone
    for process in (*daemons, local.pid):
        os.kill(process, signal.SIGKILL)
    local.communicate(timeout=LIMIT_SECONDS)
    eventually(lambda: not any(map(is_running, daemons)), "the end of all daemons")


LOCAL_STEPS = 4 * STEPS
"""Steps of a job that must still run when this process has seen one of the first: nothing here can hold it."""


@pytest.fixture(scope="module")
def local_undisturbed(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Bits:
    folder = tmp_path_factory.mktemp("local")
    with Cluster(folder, workers=2) as cluster:
        spec = spec_of(folder, gpt_config(corpus, max_steps=LOCAL_STEPS))
        return bits(cluster.finish(cluster.submit(spec)))


@pytest.mark.long
@pytest.mark.parametrize("tiers", [2, 3])
def test_everything_killed_and_resumed(
    tmp_path: Path, tiers: int, corpus: Path, local_undisturbed: Bits
) -> None:
    config = write_config(tmp_path, gpt_config(corpus, max_steps=LOCAL_STEPS))
    state = tmp_path / "state"
    arguments = [
        "local", config, "--workers", "2", "--tiers", str(tiers), "--state-dir", state, "--sample-tokens", "0",
    ]  # fmt: skip
    local = subprocess.Popen(
        [sys.executable, "-m", "cli.main", *map(str, arguments)],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        log = state / "logs" / "aggregator.log"
        past_a_checkpoint = f"Step: {CHECKPOINT_EVERY + 1},"
        eventually(lambda: log.exists() and past_a_checkpoint in log.read_text(), "a step past a checkpoint")
    finally:
        kill_everything(local, state)
    resumed = tiermesh(*arguments, "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    result = json.loads(resumed.stdout.splitlines()[-1])
    assert (result["state"], result["step"], result["generation"]) == ("succeeded", LOCAL_STEPS, 2)
    job = jobs.Job(
        checkpoint=result["checkpoint"],
        model_sha256=result["model_sha256"],
        validation_loss=result["validation_loss"],
        loss=result["loss"],
    )
    assert bits(job) == local_undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_any_kills_at_any_time(tmp_path: Path, seed: int, gpt_spec: str, undisturbed: Bits) -> None:
    draw = random.Random(seed)
    tiers = draw.choice((2, 3))
    with Cluster(tmp_path, tiers=tiers, workers=draw.randint(1, 3)) as cluster:
        job = cluster.submit(gpt_spec)
        for _ in range(6):
            events = draw.randint(1, 9)
            for number, event in enumerate(cluster.events(job)):
                if number >= events or event.job.state in ENDED:
                    break
            victim = draw.choice(["worker", "aggregator", *(["optimizer"] if tiers == 3 else [])])
            if victim == "worker":
                worker = draw.choice(cluster.workers)
                worker.kill()
                cluster.workers.remove(worker)
                cluster.start_worker(name=f"worker-{draw.getrandbits(30)}", wait=False)
            elif victim == "aggregator":
                cluster.aggregator.kill()
                cluster.start_aggregator()
            else:
                assert cluster.optimizer is not None
                cluster.optimizer.kill()
                cluster.start_optimizer()
        assert bits(cluster.finish(job)) == undisturbed
