"""`tiermesh launch --dry-run`: commands of all ranks, and errors of one line whose advice works as it is written."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from mesh.descriptors.read import parse_textproto
from services.config.paths import REPOSITORY_ROOT
from tests.cli.launch.conftest import MakeFolder

_HOSTS = "".join(f"loudbox-0{number} slots=1\n" for number in range(1, 6))
_BINDINGS = """
rank_bindings:
  - {rank: 0, mesh_id: 1}
  - {rank: 1, mesh_id: 0}
  - {rank: 2, mesh_id: 2}
  - {rank: 3, mesh_id: 3}
  - {rank: 4, mesh_id: 4}
global_env: {TT_METAL_HOME: /opt/tt-metal}
mesh_graph_desc_path: "configurations/boxes/mgd.textproto"
"""
_THREE_WORKERS = ("multihost_config.enabled=true", "multihost_config.num_workers=3")
_UPSTREAM = [
    place
    for above in REPOSITORY_ROOT.parents
    for place in (above / "shared" / "upstream").glob("*/**/hierarchical_parallel/configurations/5loudboxes")
]


@pytest.fixture
def folder(make_folder: MakeFolder) -> Path:
    return make_folder(hosts=_HOSTS, bindings=_BINDINGS, meshes=5)


def _launch(capfd: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code = main(["launch", *map(str, arguments), "--dry-run", "--json"])
    result: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert code == result.get("exit_code", 0), result
    return result


def test_five_hosts_are_three_workers_an_aggregator_and_an_optimizer(
    folder: Path, job_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = _launch(capfd, folder, "--config", job_file, *_THREE_WORKERS)
    assert result["tiers"] == 3
    ranks = {rank["rank"]: rank for rank in result["ranks"]}
    assert [(ranks[n]["role"], ranks[n]["host"], ranks[n]["mesh_id"]) for n in range(5)] == [
        ("worker", "loudbox-01", 1),
        ("worker", "loudbox-02", 0),
        ("worker", "loudbox-03", 2),
        ("aggregator", "loudbox-04", 3),
        ("optimizer", "loudbox-05", 4),
    ]
    (path,) = ranks[0]["files"]
    assert ranks[0]["environment"]["TT_MESH_GRAPH_DESC_PATH"] == path
    assert not parse_textproto(ranks[0]["files"][path], path).graph_descriptors
    assert all(rank["environment"]["TT_METAL_HOME"] == "/opt/tt-metal" for rank in ranks.values())


def test_the_text_has_each_command_as_a_shell_takes_it(
    folder: Path, job_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", str(folder), "--config", str(job_file), *_THREE_WORKERS, "--dry-run"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "5 ranks on 5 hosts: 3 workers, an aggregator and an optimizer (3 tiers)"
    commands = [shlex.split(line) for line in lines if line.startswith("env ")]
    assert len(commands) == 5
    aggregator = commands[1]
    assert aggregator[aggregator.index("--optimizer") + 1] == "loudbox-05:7071"
    assert all("loudbox-04:7070" in command for command in commands[2:])


def test_each_hosts_memory_is_told_and_compared_on_this_machine_alone(
    folder: Path, job_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    large = ("linear_regression_config.num_features=1000000", "linear_regression_config.num_targets=1000000")
    arguments = ("--config", str(job_file), *large, "--dry-run")
    assert main(["launch", str(folder), *_THREE_WORKERS, *arguments]) == 0
    text, warnings = capfd.readouterr()
    assert text.splitlines()[5].startswith("loudbox-05: the optimizer needs 28.0 TB of memory")
    assert "memory" not in warnings, "other hosts are not asked"
    (folder / "hosts.txt").unlink()
    assert main(["launch", str(folder), *_THREE_WORKERS, *arguments]) == 0
    assert capfd.readouterr().err.startswith("host this machine: its roles need ")


def test_each_rank_of_a_pipeline_example_is_a_stage(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = folder / "text.txt"
    text.write_text("to be or not to be " * 100)
    job = folder / "job.yaml"
    job.write_text(
        f"training_config: {{model_type: gpt2, max_steps: 1, batch_size: 1, data_path: {text}, tokenizer_type: char,\n"
        "  transformer_config: {num_heads: 2, embedding_dim: 32, num_blocks: 5, max_sequence_length: 32}}\n"
        "device_config: {backend: emulator}\n"
        "multihost_config: {enabled: true, num_workers: 5, pipeline_parallel_config: {blocks_per_rank: auto}}\n"
    )
    result = _launch(capfd, folder, "--config", job)
    listens = {
        each["name"]: each["arguments"][each["arguments"].index("--listen") + 1] for each in result["ranks"]
    }
    assert result["tiers"] == 2
    assert listens == {"rank5-aggregator@loudbox-01": "0.0.0.0:7070"} | {
        each["name"]: "0.0.0.0:0" for each in result["ranks"] if each["role"] == "worker"
    }  # other stages' workers connect to them
    assert len(listens) == 6
    for each in result["ranks"]:
        if each["role"] == "worker":
            assert each["arguments"][each["arguments"].index("--advertise") + 1] == each["host"]


def test_the_text_is_a_script_that_writes_each_workers_descriptor(
    make_folder: MakeFolder, job_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["launch", make_folder(meshes=3), "--config", job_file, "--dry-run", "--state-dir", tmp_path]
    assert main([*map(str, arguments)]) == 0
    script = capfd.readouterr().out.partition("\n\n")[2]
    assert main([*map(str, arguments), "--json"]) == 0
    result = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert shlex.join(result["submit"]) in script
    starts = ("env ", shlex.join(result["submit"][:2]))  # daemons, and the job
    lines = [line for line in script.splitlines() if not line.startswith(starts)]
    subprocess.run(["sh", "-eu"], input="\n".join(lines), text=True, check=True, timeout=30)
    written = {path: text for rank in result["ranks"] for path, text in rank["files"].items()}
    assert len(written) == 1
    for path, text in written.items():
        assert Path(path).read_text().rstrip() == text.rstrip()
    for rank in result["ranks"]:
        state_dir = rank["arguments"][rank["arguments"].index("--state-dir") + 1]
        assert Path(state_dir).parent.is_dir()


def test_the_command_of_each_hosts_agent_is_shown(
    folder: Path, job_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = _launch(capfd, folder, "--config", job_file, *_THREE_WORKERS, "--ssh-option", "Port=2222")
    assert [each["host"] for each in result["hosts"]] == [f"loudbox-0{number}" for number in range(1, 6)]
    for each in result["hosts"]:
        assert each["agent"][:3] == ["ssh", "-o", "Port=2222"]
        assert f"launch-agent --folder .tiermesh/launch/RUN/{each['host']}" in each["agent"][-1]


def test_the_advice_about_num_workers_works(
    folder: Path, job_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused = _launch(capfd, folder, "--config", job_file)
    assert "5 ranks, but the job's num_workers of 1 needs 2 (2 tiers) or 3 (3 tiers)" in refused["error"]
    option, _, settings = refused["error"].rpartition("; give ")[2].partition(", or add ")
    for advice in (option, settings):
        assert _launch(capfd, folder, "--config", job_file, *advice.split())["tiers"] == 3


def test_all_five_hosts_compute_and_two_roles_share_one(
    folder: Path, job_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Check that nothing of the roles that share a host collides, and that the plan says where they are and why."""
    result = _launch(capfd, folder, "--config", job_file, "--workers", 5)
    beside = [rank for rank in result["ranks"] if rank["beside"]]
    assert [(rank["role"], rank["host"]) for rank in beside] == [
        ("optimizer", "loudbox-01"),
        ("aggregator", "loudbox-01"),
    ]
    assert sum(rank["role"] == "worker" for rank in result["ranks"]) == 5
    sharing = [rank["arguments"] for rank in result["ranks"] if rank["host"] == "loudbox-01"]
    for option in ("--name", "--state-dir", "--ready-file", "--tls-cert", "--tls-key"):
        values = {arguments[arguments.index(option) + 1] for arguments in sharing}
        assert len(values) == 3, option
    ports = [arguments[arguments.index("--listen") + 1].rpartition(":")[2] for arguments in sharing]
    assert sorted(ports) == ["0", "7070", "7071"], "0 takes any free port"
    assert not any("--metrics-listen" in arguments for arguments in sharing), "by default, any free port"
    assert main(["launch", str(folder), "--config", str(job_file), "--workers", "5", "--dry-run"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "7 ranks on 5 hosts: 5 workers, an aggregator and an optimizer (3 tiers)"
    assert "beside a worker: a launch takes the host with most memory, and this text loudbox-01" in lines[1]
    assert lines[2].startswith("loudbox-01: its roles need ")


def test_options_without_a_folder(folder: Path, job_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = (
        "--hosts",
        "a:2,b:3",
        "--mgd",
        folder / "mgd.textproto",
        "--set",
        _THREE_WORKERS[0],
        _THREE_WORKERS[1],
    )
    result = _launch(capfd, "--config", job_file, "device_config.backend=emulator", *files)
    assert [rank["host"] for rank in result["ranks"]] == ["b", "b", "a", "a", "b"]


def test_ranks_without_hosts_are_local(
    make_folder: MakeFolder, job_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = _launch(capfd, make_folder(meshes=2), "--config", job_file)
    assert {rank["host"] for rank in result["ranks"]} == {None}
    assert not any("--tls-cert" in rank["arguments"] for rank in result["ranks"])


def test_configs_are_found_by_tt_trains_relative_paths(
    make_folder: MakeFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    shipped = next((REPOSITORY_ROOT / "configs" / "training_configs").glob("demo.yaml"))
    folder = make_folder(hosts="a slots=4\n", meshes=4)
    for name in (shipped, f"training_configs/{shipped.name}", shipped.name):
        result = _launch(capfd, folder, "--config", name, "device_config.backend=emulator")
        assert len(result["ranks"]) == 4


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (
            ["--aggregator-port", "7071", "--hosts", "a:5"],
            "--optimizer-port 7071: also the port of the aggregator",
        ),
        (
            ["--workers", "5", "--aggregator-port", "7071"],
            "--optimizer-port 7071: also the port of the aggregator",
        ),
        (["--workers", "0"], "0 given, expected a whole number from 1 to 1024"),
        (["--workers", "6"], "--workers 6: more than the 5 ranks"),
        (["--workers", "2"], "--workers 2: 5 ranks in"),
        (["--workers", "2", "--hosts", "a,b,a"], "host a is named twice"),
        (["elsewhere"], "'elsewhere': given after the folder"),
        (["--hosts", "a:2"], "2 slots on 1 host, expected one for each of 5 ranks"),
        (["--hosts", "none/hosts.txt"], "no such file"),
        (["--rankfile", "none"], "no such file"),
        (["--rank-bindings", "none"], "no such file"),
        (["--mgd", "none"], "no such file"),
    ],
)
def test_what_is_refused(
    arguments: list[str], fact: str, folder: Path, job_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = [*_THREE_WORKERS, "device_config.backend=emulator"]
    refused = _launch(capfd, folder, "--config", job_file, *settings, *arguments)
    assert fact in refused["error"]
    assert refused["exit_code"] == 2


@pytest.mark.skipif(not _UPSTREAM, reason="tt-train's configuration folders are not beside the repository")
def test_tt_trains_five_loudboxes_as_they_are(job_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for upstream in _UPSTREAM:
        result = _launch(capfd, upstream, "--config", job_file, *_THREE_WORKERS)
        assert [rank["role"] for rank in result["ranks"]] == ["optimizer", "aggregator", *["worker"] * 3]
