"""Run the commands of docs/operate/first-day.md that need no hosts, in order, and check that the others fit them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cli.main import main
from tests.cli.conftest import JOB as TINY_JOB
from tests.support.cluster.daemon import environment, eventually, tiermesh
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operate" / "first-day.md").read_text()
SETTINGS = Path("/etc/tiermesh")


def commands(program: str) -> Iterator[list[str]]:
    """Yield the words of each command of a program."""
    blocks = "\n".join(line[4:] for line in PAGE.splitlines() if line.startswith("    "))
    for line in blocks.replace("\\\n", " ").splitlines():
        if line.startswith(f"{program} "):
            yield shlex.split(line)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of what the commands read, which is the working directory."""
    for name in ("configs", "deploy"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "shakespeare.txt").write_text("to be or not to be, that is the question. " * 2000)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(folder: Path, role: str) -> dict[str, str]:
    """Return the settings of a role's example after the page's changes of it."""
    shutil.copy(folder / "deploy" / "systemd" / f"{role}.env.example", folder / f"{role}.env")
    for _, option, script, file in commands("sed"):
        assert option == "-i" and Path(file).parent == SETTINGS
        if Path(file).name == f"{role}.env":
            subprocess.run(["sed", "-i", script, f"{role}.env"], check=True, cwd=folder)
    lines = (folder / f"{role}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_jobs_are_valid_and_the_launch_puts_five_workers_on_five_hosts(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for _, name, *arguments in commands("tiermesh"):
        if name in ("launch", "validate"):
            assert main([name, *arguments]) == 0
        elif name == "submit":
            assert main(["validate", *arguments]) == 0
    output = capfd.readouterr().out
    assert "7 ranks on 5 hosts: 5 workers, an aggregator and an optimizer (3 tiers)" in output
    assert "beside a worker" in output


def test_certificates_are_made_under_the_names_that_are_copied_and_given(folder: Path) -> None:
    for _, name, *arguments in commands("tiermesh"):
        if name in ("certs", "tokens"):
            assert main([name, *arguments]) == 0
    given = {text for words in commands("tiermesh") for text in words if text.startswith("certs/")}
    copied = [(source, Path(target.partition(":")[2])) for _, source, target in commands("scp")]
    for file in {*given, *(source for source, _ in copied)}:
        assert (folder / file).is_file(), file
    worker = settings(folder, "worker")
    assert {str(target) for _, target in copied} == {
        worker[f"TIERMESH_TLS_{end}"] for end in ("CA", "CERT", "KEY")
    }
    assert (folder / "ann.txt").is_file() and (folder / "ben.txt").is_file()


def test_the_settings_name_the_hosts_of_the_page(folder: Path) -> None:
    changed = {role: settings(folder, role) for role in ("worker", "aggregator", "optimizer")}
    for role, each in changed.items():
        assert not re.search(r"\w\.example", str(each)), role
        assert each["TIERMESH_TLS_CERT"].endswith(f"/{role}.pem")
    ports = {role: each["TIERMESH_LISTEN"].rpartition(":")[2] for role, each in changed.items()}
    assert changed["worker"]["TIERMESH_AGGREGATOR"] == f"loudbox-01:{ports['aggregator']}"
    assert changed["aggregator"]["TIERMESH_OPTIMIZER"] == f"loudbox-01:{ports['optimizer']}"
    people = changed["aggregator"]["TIERMESH_PEOPLE_LISTEN"].rpartition(":")[2]
    assert f"TIERMESH_AGGREGATOR=loudbox-01:{people} " in PAGE
    assert changed["aggregator"]["TIERMESH_TOKENS"] == "/etc/tiermesh/tls/tokens.txt"
    for role, each in changed.items():
        assert each["TIERMESH_METRICS_LISTEN"].rpartition(":")[2] in PAGE, role


@contextmanager
def daemons(folder: Path, ports: dict[tuple[str, str], int]) -> Iterator[None]:
    """Run what the page starts on its first two hosts, here: its settings with other ports, folders and addresses."""

    def here(host: str, value: str) -> str:
        value = value.replace("/etc/tiermesh/tls/", f"{folder}/certs/").replace(
            "/var/lib", str(folder / host)
        )
        value = re.sub(r"(worker|aggregator|optimizer)\.(pem|key)$", rf"\1-{host}.\2", value)
        name, colon, port = value.rpartition(":")
        if colon or value.isdigit():
            owner = "loudbox-01" if name == "loudbox-01" else host
            value = f"{name}{colon}{ports.setdefault((owner, port or value), free_port())}"
        return re.sub(r"loudbox-0\d(?=:|$)", "127.0.0.1", value)

    with ExitStack() as stack:
        for role, host in (
            ("optimizer", "loudbox-01"),
            ("aggregator", "loudbox-01"),
            ("worker", "loudbox-01"),
            ("worker", "loudbox-02"),
        ):
            own = folder / host / role
            own.mkdir(parents=True)
            (folder / host / "tiermesh").mkdir(exist_ok=True)  # as systemd's StateDirectory does
            options = {name: here(host, value) for name, value in settings(folder, role).items()}
            log = stack.enter_context((own / "log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "cli.main", role, "--name", f"{role}@{host}"],
                cwd=own,
                env={**environment(), "PYTHONPATH": str(ROOT), **options},
                stdout=log,
                stderr=log,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


@pytest.mark.long
def test_two_people_get_results_from_the_daemons_of_the_page(folder: Path) -> None:
    """Check certificates, settings, tokens and the check of the cluster together, with two of the five workers."""
    for _, name, *arguments in commands("tiermesh"):
        if name in ("certs", "tokens"):
            issues = arguments[:2] in (["issue", "aggregator"], ["issue", "optimizer"], ["issue", "worker"])
            assert main([name, *arguments, *(["--host", "127.0.0.1"] if issues else [])]) == 0
    (folder / "job.yaml").write_text(TINY_JOB)
    ports: dict[tuple[str, str], int] = {}
    with daemons(folder, ports):

        def address(text: str) -> str:
            host, _, port = text.rpartition(":")
            return f"127.0.0.1:{ports[host, port]}"

        (check,) = [words[1:] for words in commands("tiermesh") if words[1:3] == ["check", "--cluster"]]
        check = [address(word) if word.startswith("loudbox-01:") else word for word in check]
        check = [str(folder / word) if word.startswith("certs/") else word for word in check]

        def check_cluster() -> str:
            done = tiermesh(*check, "--json")
            both = all(f"worker@loudbox-0{number}" in done.stdout for number in (1, 2))
            return done.stdout if done.returncode == 0 and both else ""

        eventually(check_cluster, "a check of both workers")
        (export,) = commands("export")
        for person in ("ann", "ben"):
            shown = dict(text.split("=") for text in export[1:])
            access = ["--aggregator", address(shown["TIERMESH_AGGREGATOR"])]
            access += ["--tls-ca", str(folder / "certs" / "authority.pem")]
            token = folder / shown["TIERMESH_TOKEN_FILE"].replace("ann", person)
            done = tiermesh(
                "submit", folder / "job.yaml", "--follow", "--json", *access, "--token-file", token
            )
            result = json.loads(done.stdout.splitlines()[-1])
            assert (done.returncode, result["state"]) == (0, "succeeded"), done.stderr
            assert result["owner"] == person


def test_units_that_are_copied_and_started_exist() -> None:
    copied = [Path(file) for _, *files, _ in commands("cp") for file in files]
    assert all((ROOT / file).is_file() for file in copied)
    started = {unit for words in commands("systemctl") for unit in words if unit.startswith("tiermesh-")}
    assert {f"{unit}.service" for unit in started} == {
        file.name for file in copied if file.suffix == ".service"
    }
