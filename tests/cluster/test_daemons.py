"""Edge cases of daemons: refused starts, absent peers, stops, takeovers and damaged state."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from protos import jobs_pb2 as jobs
from services.errors import ExitCode
from services.timeouts import STANDARD_HEARTBEAT_SECONDS, Timeouts
from services.transport.limits import KEEPALIVE_SECONDS
from tests.support.cluster.bits import Bits, bits
from tests.support.cluster.daemon import Daemon, eventually, only_first, tiermesh
from tests.support.cluster.harness import ENDED, Cluster

NOBODY = "127.0.0.1:1"


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert "Traceback" not in text and "internal error" not in text, text
    return lines[-1]


def error_line(daemon: Daemon) -> str:
    """Return the one error in the log."""
    (line,) = [line for line in daemon.log_text().splitlines() if " ERROR " in line]
    assert "internal error" not in line
    return line


# ---- starting ----


@pytest.mark.parametrize("role", ["worker", "aggregator", "optimizer"])
@pytest.mark.parametrize("option", ["--listen", "--metrics-listen"])
def test_a_port_in_use(tmp_path: Path, role: str, option: str) -> None:
    with Cluster(tmp_path) as cluster:
        taken = cluster.aggregator.address
        state = [] if role == "worker" else ["--state-dir", tmp_path / "state"]
        listen = [] if option == "--listen" else ["--listen", "127.0.0.1:0"]
        done = tiermesh(role, option, taken, *listen, *state)
        assert done.returncode == ExitCode.NOT_YET
        assert f"address {taken}: address already in use; choose another" in last_line(done.stderr)
        assert not (tmp_path / "state" / "queue.sqlite").exists(), (
            "a refused aggregator leaves the state alone"
        )


@pytest.mark.parametrize("role", ["aggregator", "optimizer"])
def test_an_unusable_state_dir_is_refused(tmp_path: Path, role: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = tiermesh(role, "--listen", "127.0.0.1:0", "--state-dir", tmp_path / "file")
    assert done.returncode == 2
    assert str(tmp_path / "file") in last_line(done.stderr)
    assert "--state-dir" in last_line(done.stderr)


@pytest.mark.parametrize("role", ["worker", "aggregator", "optimizer"])
def test_listening_beyond_loopback_needs_tls_or_insecure(tmp_path: Path, role: str) -> None:
    state = [] if role == "worker" else ["--state-dir", tmp_path / "state"]
    done = tiermesh(role, "--listen", "0.0.0.0:0", *state)
    assert done.returncode == 2
    assert "neither TLS nor --insecure is given" in last_line(done.stderr)


def test_two_optimizers_on_one_state_dir(tmp_path: Path) -> None:
    with Cluster(tmp_path, tiers=3):
        done = tiermesh("optimizer", "--listen", "127.0.0.1:0", "--state-dir", tmp_path / "optimizer-state")
        assert done.returncode == ExitCode.NOT_YET
        line = last_line(done.stderr)
        assert f"--state-dir {tmp_path / 'optimizer-state'}: in use by another optimizer" in line


# ---- absent peers ----


def test_a_worker_without_an_aggregator(tmp_path: Path) -> None:
    worker = Daemon("worker", "lonely", tmp_path, "--aggregator", NOBODY)
    try:
        worker.ready()
        worker.wait_log(f"nothing listens at {NOBODY}: start `tiermesh aggregator`")
        assert worker.metric("tiermesh_aggregator_connected") == 0
        assert worker.terminate() == 0
    finally:
        worker.close()
    attempts = [line for line in worker.log_text().splitlines() if "trying again" in line]
    assert len(attempts) == 1 and "WARNING" in attempts[0], "logged once, not at every attempt"


def test_an_aggregator_without_its_optimizer(tmp_path: Path, short_spec: str) -> None:
    """Check that it takes jobs, names what they wait for, and continues when the optimizer appears."""
    with Cluster(tmp_path, tiers=3, workers=1) as cluster:
        assert cluster.optimizer is not None
        cluster.optimizer.kill()
        cluster.aggregator.wait_log("; trying again")
        job = cluster.submit(short_spec)
        status = cluster.status()
        assert (status.running_jobs, status.tiers) == ([job], 3)
        assert status.optimizer.startswith(cluster.to_optimizer.address)
        assert status.waiting.startswith(f"waits for the optimizer: {cluster.to_optimizer.address}")
        downloaded = tiermesh("download", job, tmp_path / "out", "--aggregator", cluster.aggregator.address)
        assert downloaded.returncode == 1
        assert "is not connected" in last_line(downloaded.stderr)
        cluster.start_optimizer()
        cluster.finish(job)


def test_commands_without_an_aggregator() -> None:
    done = tiermesh("jobs", "--aggregator", NOBODY, "--timeout-seconds", "5")
    assert done.returncode == 1
    assert f"nothing listens at {NOBODY}: start `tiermesh aggregator`" in last_line(done.stderr)


@pytest.mark.slow
def test_idle_links_stay_up(tmp_path: Path) -> None:
    """Wait longer than the time after which a gRPC server rejects keepalive pings (three of them)."""
    with Cluster(tmp_path, tiers=3, workers=1) as cluster:
        cluster.wait_workers(1)
        with pytest.raises(subprocess.TimeoutExpired):
            cluster.aggregator.process.wait(5 * KEEPALIVE_SECONDS)
        for daemon in cluster.daemons:
            assert "trying again" not in daemon.log_text(), daemon.log_text()


# ---- stopping ----


@pytest.mark.parametrize(
    "frozen",
    [
        pytest.param("worker", marks=pytest.mark.long),
        pytest.param("aggregator", marks=pytest.mark.long),
        "optimizer",
    ],
)
def test_sigterm_stops_every_role_while_a_peer_is_frozen(tmp_path: Path, frozen: str, long_spec: str) -> None:
    with Cluster(tmp_path, tiers=3, workers=1) as cluster:
        cluster.wait_step(cluster.submit(long_spec), 2)
        cluster.serving(frozen).freeze()
        roles = [role for role in ("worker", "aggregator", "optimizer") if role != frozen]
        for role in roles:
            assert cluster.serving(role).terminate() == 0, role
            log = cluster.serving(role).log_text()
            assert "stopping: SIGTERM" in log
            assert "Traceback" not in log and "ERROR" not in log, log


def test_sigterm_mid_step_closes_the_mesh(tmp_path: Path, long_spec: str) -> None:
    with Cluster(tmp_path, workers=1) as cluster:
        cluster.wait_step(cluster.submit(long_spec), 2)
        assert cluster.workers[0].terminate() == 0
        log = cluster.workers[0].log_text()
        opened, stopping = log.index("opened a mesh of [1, 1]"), log.index("stopping: SIGTERM")
        assert opened < stopping < log.index("the mesh of [1, 1] is closed"), log


@pytest.mark.long
def test_a_stopped_cluster_resumes(tmp_path: Path, gpt_spec: str, undisturbed: Bits) -> None:
    with Cluster(tmp_path, tiers=3, workers=1) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 2)
        assert cluster.optimizer is not None
        for daemon in (cluster.aggregator, cluster.optimizer):
            assert daemon.terminate() == 0
            assert "stopping: SIGTERM" in daemon.log_text()
            assert "ERROR" not in daemon.log_text()
        cluster.start_optimizer()
        cluster.start_aggregator()
        assert bits(cluster.finish(job)) == undisturbed


# ---- taking over ----


def second_aggregator(cluster: Cluster, heartbeat_seconds: float, name: str = "second") -> Daemon:
    """Start a second aggregator on the cluster's state dir, as a unit of another name would."""
    state = ("--state-dir", cluster.folder / "aggregator-state", "--heartbeat-seconds", heartbeat_seconds)
    link = ("--optimizer", cluster.to_optimizer.address) if cluster.optimizer is not None else ()
    second = cluster._start("aggregator", name, *state, *link)
    limit_seconds = Timeouts.from_heartbeat(heartbeat_seconds).stop
    second.wait_log(f"another aggregator leads on it; waiting up to {limit_seconds:g} s for its end")
    return second


@pytest.mark.long
@pytest.mark.parametrize("tiers", [2, 3])
def test_a_second_aggregator_on_the_state_dir_waits_for_the_end_of_the_first(
    tmp_path: Path, tiers: int, gpt_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, tiers=tiers, workers=1) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 2)
        second = second_aggregator(cluster, STANDARD_HEARTBEAT_SECONDS)  # so it waits for long
        cluster.aggregator.kill()
        cluster.switch_to(second.ready())
        assert bits(cluster.finish(job)) == undisturbed
        assert cluster.status().epoch == 2


@pytest.mark.long
def test_an_aggregator_that_is_restarted_for_ever_beside_another_raises_no_epoch(tmp_path: Path) -> None:
    with Cluster(tmp_path, heartbeat_seconds=0.5) as cluster:
        for name in ("second", "third"):
            second = second_aggregator(cluster, 0.5, name)
            assert second.ended() == 75
            line = error_line(second)
            assert "another aggregator leads on it" in line and "--standby" in line
        assert cluster.status().epoch == 1


# ---- damaged checkpoints ----


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.long
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    at_second = only_first("optimizer", "checkpoint.after-rename=kill@2")
    with Cluster(tmp_path, tiers=3, workers=1, failpoints=at_second) as cluster:
        job = cluster.submit(gpt_spec)
        assert cluster.serving("optimizer").ended() == -signal.SIGKILL
        before, newest = sorted(cluster.checkpoints(job).glob("step-*"))
        flip_a_byte(newest / "model.safetensors")
        cluster.start_optimizer()
        assert bits(cluster.finish(job)) == undisturbed
        log = cluster.serving("optimizer").log_text()
        assert f"{newest.name}: model.safetensors is damaged" in log
        assert f"falling back to {before.name}" in log


@pytest.mark.long
def test_no_intact_checkpoint_fails_the_job(tmp_path: Path, gpt_spec: str, short_spec: str) -> None:
    at_first = only_first("optimizer", "checkpoint.after-rename=kill@1")
    with Cluster(tmp_path, tiers=3, workers=1, failpoints=at_first) as cluster:
        job = cluster.submit(gpt_spec)
        assert cluster.serving("optimizer").ended() == -signal.SIGKILL
        flip_a_byte(cluster.checkpoint(job, 0) / "optimizer.safetensors")
        cluster.start_optimizer()
        ended = cluster.wait(job, lambda each: each.state in ENDED, "its end")
        assert ended.state == jobs.FAILED
        assert "none intact" in ended.detail and "restore one from a copy" in ended.detail
        cluster.finish(cluster.submit(short_spec))


@pytest.mark.long
def test_a_damaged_checkpoint_is_not_downloaded(tmp_path: Path, short_spec: str) -> None:
    with Cluster(tmp_path, workers=1) as cluster:
        job = cluster.submit(short_spec)
        cluster.finish(job)
        flip_a_byte(cluster.checkpoints(job) / "step-00000005" / "model.safetensors")
        arguments = ("download", job, tmp_path / "out", "--aggregator", cluster.aggregator.address)
        damaged = tiermesh(*arguments, "--step", "5")
        assert damaged.returncode == 2
        assert "model.safetensors is damaged" in last_line(damaged.stderr)
        assert tiermesh(*arguments).returncode == 0
        assert eventually((tmp_path / "out" / "step-00000000").is_dir, "the checkpoint before")
