"""`tiermesh launch` through a real sshd on loopback: a job to its end, and every way in which a run can end early."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster.daemon import eventually
from tests.support.launches import (
    ENDLESS,
    ONE_RANK_EACH,
    PIPELINE,
    TOO_LARGE,
    TWO_HOSTS,
    command,
    job_of,
    loudboxes,
    processes_of,
    run,
    training,
    wait_until_nothing_is_left,
)
from tests.support.ports import free_port
from tests.support.sshd import Sshd, running_sshd


@pytest.mark.long
@pytest.mark.parametrize(
    "hosts", [ONE_RANK_EACH, TWO_HOSTS], ids=["a rank on each host", "several on a host"]
)
def test_a_configuration_folder_trains_to_the_bits_of_a_local_cluster(
    sshd: Sshd, tmp_path: Path, hosts: str
) -> None:
    folder = loudboxes(tmp_path / "5loudboxes", hosts)
    code, result, lines = run(command(sshd, *job_of(folder)))
    assert (code, result["state"]) == (0, "succeeded"), lines
    assert "3 workers, an aggregator and an optimizer (3 tiers)" in lines[0]
    assert Path(result["checkpoint"]).is_dir()
    wait_until_nothing_is_left(sshd)
    local = ("local", str(folder / "job.yaml"), "--workers", "3", "--tiers", "3", "--sample-tokens", "0")
    code, expected, _ = run(
        [sys.executable, "-m", "cli.main", *local, "--state-dir", str(tmp_path / "local")]
    )
    assert (code, result["model_sha256"]) == (0, expected["model_sha256"])


def ready_rows(runs: Path) -> list[str]:
    """Return the lines about rows in the log of the only job. Who follows the job may come too late for them."""
    (log,) = runs.glob("**/logs/*.jsonl")
    texts = [json.loads(line)["text"] for line in log.read_text().split("\n")[:-1]]  # complete lines
    return [text for text in texts if re.match(r"row \d is ready", text)]


@pytest.mark.long
def test_the_ranks_of_a_pipeline_are_stages(tmp_path: Path) -> None:
    """Check that each rank has a stage, and that the bits are those of a job without a pipeline."""
    folder = loudboxes(tmp_path / "5loudboxes", "")
    (folder / "hosts.txt").unlink()
    (folder / "text.txt").write_text("to be or not to be " * 200)
    (folder / "job.yaml").write_text(PIPELINE.format(text=folder / "text.txt"))
    here = [sys.executable, "-m", "cli.main"]
    # With fewer workers, as when one of them is late, they would share the stages.
    job = job_of(folder, "training_config.min_workers=5")
    code, result, lines = run([*here, "launch", *job, "--state-dir", str(tmp_path / "runs")])
    assert (code, result["state"]) == (0, "succeeded"), lines
    assert "5 workers and an aggregator (2 tiers)" in lines[0]
    assert any("row 1" in row and "stage 4 on" in row for row in ready_rows(tmp_path / "runs"))
    whole = ("--set", "multihost_config.enabled=false", "--workers", "1", "--sample-tokens", "0")
    state = ("--state-dir", str(tmp_path / "local"))
    code, expected, _ = run([*here, "local", str(folder / "job.yaml"), *whole, *state])
    assert (code, result["model_sha256"]) == (0, expected["model_sha256"])


@pytest.mark.long
def test_the_ranks_of_two_pipelines_are_stages_in_order(tmp_path: Path) -> None:
    folder = loudboxes(tmp_path / "5loudboxes", "")
    (folder / "hosts.txt").unlink()
    (folder / "text.txt").write_text("to be or not to be " * 200)
    job = PIPELINE.format(text=folder / "text.txt").replace("auto", "auto, num_stages: 2")
    (folder / "job.yaml").write_text(job)
    runs = tmp_path / "runs"
    arguments = job_of(folder, "multihost_config.num_workers=4", *ENDLESS, "--state-dir", str(runs))
    with training([sys.executable, "-m", "cli.main", "launch", *arguments]) as process:
        # The job goes on with the first row that is ready.
        lines = eventually(lambda: (found := ready_rows(runs))[1:] and found, "two rows")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 1
    rows = [re.findall(r"stage (\d) on rank(\d)", line) for line in lines]
    assert sorted(rows) == [[("0", "0"), ("1", "1")], [("0", "2"), ("1", "3")]], lines


@pytest.mark.long
def test_five_hosts_compute_and_one_of_them_has_the_other_roles_too(sshd: Sshd, tmp_path: Path) -> None:
    """Check the bits of a job whose `num_workers` is 3 on five workers, and where the other roles are said to be."""
    folder = loudboxes(tmp_path / "5loudboxes", ONE_RANK_EACH)
    code, result, lines = run(command(sshd, *job_of(folder, "--workers", "5")))
    assert (code, result["state"], result["host"]) == (0, "succeeded", "127.0.0.1"), lines
    assert "7 ranks on 5 hosts: 5 workers, an aggregator and an optimizer (3 tiers)" in lines[0]
    assert "beside a worker on 127.0.0.1, which has most memory: " in lines[1]
    wait_until_nothing_is_left(sshd)
    local = ("local", str(folder / "job.yaml"), "--workers", "1", "--sample-tokens", "0")
    code, expected, _ = run(
        [sys.executable, "-m", "cli.main", *local, "--state-dir", str(tmp_path / "local")]
    )
    assert (code, result["model_sha256"]) == (0, expected["model_sha256"])


def test_without_hosts_the_ranks_run_here_without_ssh(tmp_path: Path) -> None:
    folder = loudboxes(tmp_path / "5loudboxes", "")
    (folder / "hosts.txt").unlink()
    (folder / "rank_bindings.yaml").write_text(
        "rank_bindings:\n  - {rank: 0, mesh_id: 1}\n  - {rank: 1, mesh_id: 0}\n"
    )
    arguments = job_of(folder, "multihost_config.num_workers=1", "--state-dir", str(tmp_path / "runs"))
    code, result, lines = run([sys.executable, "-m", "cli.main", "launch", *arguments])
    assert (code, result["state"], result["host"]) == (0, "succeeded", "this machine"), lines
    assert "2 ranks on this machine" in lines[0]


@pytest.mark.long
def test_all_ranks_compute_and_the_other_roles_run_here_too(tmp_path: Path) -> None:
    """Check that seven daemons share this machine, and that the step is that of the job's `num_workers`."""
    folder = loudboxes(tmp_path / "5loudboxes", "")
    (folder / "hosts.txt").unlink()
    here = [sys.executable, "-m", "cli.main"]
    arguments = job_of(folder, "--workers", "5", "--state-dir", str(tmp_path / "runs"))
    code, result, lines = run([*here, "launch", *arguments])
    assert (code, result["state"]) == (0, "succeeded"), lines
    assert "7 ranks on this machine: 5 workers, an aggregator and an optimizer (3 tiers)" in lines[0]
    local = ("--workers", "1", "--sample-tokens", "0", "--state-dir", str(tmp_path / "local"))
    code, expected, _ = run([*here, "local", str(folder / "job.yaml"), *local])
    assert (code, result["model_sha256"]) == (0, expected["model_sha256"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (Sshd.stop, "refuses the connection; start sshd there"),
        (Sshd.forget_host, "has a host key that is not in known_hosts"),
        (Sshd.change_known_key, "shows another host key than known_hosts has"),
        (Sshd.refuse_key, "refuses the key"),
        (lambda sshd: sshd.remote.unlink(), "can't be started there"),
    ],
    ids=["no sshd", "unknown host key", "other host key", "key refused", "no Tiermesh"],
)
def test_a_host_that_cannot_be_used_ends_in_one_line(
    sshd: Sshd, tmp_path: Path, damage: Callable[[Sshd], None], said: str
) -> None:
    folder = loudboxes(tmp_path / "loudbox", ONE_RANK_EACH)
    (folder / "hosts.txt").write_text("127.0.0.1 slots=5\n")
    damage(sshd)
    code, result, lines = run(command(sshd, *job_of(folder)))
    assert (code, len(lines)) == (2, 2), lines
    assert result["error"].startswith("host 127.0.0.1: ")
    assert said in result["error"]
    assert len(result["error"]) <= 300
    wait_until_nothing_is_left(sshd)


@pytest.mark.long
def test_a_host_that_asks_for_a_password_ends_in_one_line(sshd: Sshd, tmp_path: Path) -> None:
    folder = loudboxes(tmp_path / "loudbox", "127.0.0.1 slots=5\n")
    with running_sshd(tmp_path / "asking", password=True) as asking:
        asking.refuse_key()
        code, result, _ = run(command(asking, *job_of(folder)))
    assert (code, "refuses the key and asks for a password" in result["error"]) == (2, True), result


@pytest.mark.long
def test_a_port_in_use_is_found_before_anything_starts(sshd: Sshd, tmp_path: Path) -> None:
    folder = loudboxes(tmp_path / "loudbox", TWO_HOSTS)
    ports = ("--aggregator-port", str(sshd.port), "--optimizer-port", str(free_port()))
    code, result, _ = run(command(sshd, str(folder), "--config", str(folder / "job.yaml"), *ports))
    assert code == 2
    assert f"host 127.0.0.2: port {sshd.port} is in use" in result["error"]
    wait_until_nothing_is_left(sshd)


@pytest.mark.long
def test_a_job_too_large_for_its_hosts_is_refused_before_anything_starts(sshd: Sshd, tmp_path: Path) -> None:
    folder = loudboxes(tmp_path / "loudbox", TWO_HOSTS)
    code, _, lines = run(command(sshd, *job_of(folder, *TOO_LARGE)))
    assert code == 2
    assert any(line.startswith("tiermesh: 2 of 2 hosts can't be used") for line in lines), lines
    (optimizer,) = [line for line in lines if line.startswith("host 127.0.0.2: its roles need ")]
    assert "TB of memory (the optimizer " in optimizer and "use a host with more for rank 4" in optimizer
    assert not list((sshd.folder / "runs").glob("*/*/rank*")), "no daemon has started"
    wait_until_nothing_is_left(sshd)


@pytest.mark.long
def test_a_job_too_large_for_this_machine_is_refused_before_anything_starts(tmp_path: Path) -> None:
    folder = loudboxes(tmp_path / "loudbox", "")
    (folder / "hosts.txt").unlink()
    local = ["launch", *job_of(folder, *TOO_LARGE, "--state-dir", str(tmp_path / "runs"))]
    code, result, _ = run([sys.executable, "-m", "cli.main", *local])
    assert (code, result["error"].startswith("host this machine: its roles need ")) == (2, True), result
    assert not list((tmp_path / "runs").glob("*/*/rank*")), "no daemon has started"


@pytest.mark.long
@pytest.mark.parametrize("cause", ["daemon killed", "launcher killed", "interrupt"])
def test_nothing_is_left_however_a_run_ends(sshd: Sshd, tmp_path: Path, cause: str) -> None:
    folder = loudboxes(tmp_path / "5loudboxes", TWO_HOSTS)
    with training(command(sshd, *job_of(folder, *ENDLESS))) as process:
        assert process.stdout is not None
        if cause == "launcher killed":
            process.kill()
        else:
            if cause == "interrupt":
                process.send_signal(signal.SIGINT)
            else:
                for pid in processes_of(sshd, "--name rank4-optimizer"):
                    os.kill(pid, signal.SIGKILL)
            last = process.stdout.read().splitlines()[-1]
            assert process.wait(timeout=120) == 1
            if cause == "interrupt":
                assert last.startswith("tiermesh: interrupted")
            else:
                assert re.search(
                    r"host 127\.0\.0\.2: rank 4, optimizer: rank4-optimizer@127\.0\.0\.2 .* killed by SIGKILL",
                    last,
                )
        wait_until_nothing_is_left(sshd)


@pytest.mark.long
def test_a_detached_run_is_attached_to_and_stopped(sshd: Sshd, tmp_path: Path) -> None:
    folder = loudboxes(tmp_path / "5loudboxes", TWO_HOSTS)
    code, result, lines = run(command(sshd, *job_of(folder, *ENDLESS), "--detach"))
    assert code == 0, lines
    name = result["run"]
    with training(command(sshd, "--attach", name)) as process:
        process.send_signal(signal.SIGINT)  # leaves it running
        assert process.wait(timeout=60) == 1
    assert len(processes_of(sshd, "--name rank")) == 5
    for pid in processes_of(sshd, "-m cli.main launch-agent --folder"):
        if "127.0.0.1" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(
                pid, signal.SIGTERM
            )  # as when that host shuts down; the other one is stopped all the same
    code, result, _ = run(command(sshd, "--stop", name))
    assert (code, result["run"]) == (0, name)
    wait_until_nothing_is_left(sshd)
    code, result, _ = run(command(sshd, "--attach", name))
    assert (code, "none was launched from here" in result["error"]) == (2, True)


@pytest.mark.long
def test_attaching_to_a_run_whose_job_has_ended_shows_its_end_and_stops_it(
    sshd: Sshd, tmp_path: Path
) -> None:
    folder = loudboxes(tmp_path / "5loudboxes", TWO_HOSTS)
    code, result, lines = run(command(sshd, *job_of(folder), "--detach"))
    assert code == 0, lines
    code, result, lines = run(command(sshd, "--attach", result["run"]))
    assert (code, result["state"]) == (0, "succeeded"), lines
    wait_until_nothing_is_left(sshd)


def cancel(sshd: Sshd, name: str) -> None:
    """Cancel the job of a detached run, with the launcher's certificate."""
    folder = sshd.folder / "runs" / name
    record = json.loads((folder / "run.json").read_text())
    files = ("--tls-cert", "daemon.crt", "--tls-key", "daemon.key", "--tls-ca", "authority.crt")
    options = [str(folder / each) if "." in each else each for each in files]
    arguments = ("cancel", record["job"], "--aggregator", record["aggregator"])
    code, result, lines = run([sys.executable, "-m", "cli.main", *arguments, *options])
    assert (code, result["state"]) == (0, "cancelled"), lines


@pytest.mark.long
@pytest.mark.parametrize("state", ["succeeded", "cancelled"])
def test_a_detached_run_ends_with_its_job_and_keeps_the_result(
    sshd: Sshd, tmp_path: Path, state: str
) -> None:
    folder = loudboxes(tmp_path / "5loudboxes", TWO_HOSTS)
    more = ENDLESS if state == "cancelled" else ()
    code, result, lines = run(command(sshd, *job_of(folder, *more), "--detach"))
    assert code == 0, lines
    name = result["run"]
    if state == "cancelled":
        cancel(sshd, name)
    wait_until_nothing_is_left(sshd, 120)
    code, result, lines = run(command(sshd, "--attach", name))
    assert (code, result["state"], result["run"]) == (int(state == "cancelled"), state, name), lines
    assert result["host"] == "127.0.0.2"
    code, result, _ = run(command(sshd, "--attach", name))
    assert (code, "none was launched from here" in result["error"]) == (2, True)
