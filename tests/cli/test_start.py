"""What a command imports before it answers, and Ctrl-C at any time of that.

Counts of modules stand for times, which depend on the machine; `benchmarks/figures/first_sign.py` measures those.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from benchmarks.figures import first_sign
from cli.commands import SECTIONS
from cli.main import main, tiermesh
from services.config.paths import REPOSITORY_ROOT

NOBODY = "127.0.0.1:1"
SILENT = ("--help", "--version", "completion", "worker", "aggregator", "optimizer")
"""Commands that answer at once, and daemons, which say on a terminal that they start."""
HEAVY = frozenset(
    {
        *("cryptography", "google.protobuf", "grpc", "numpy", "pydantic", "rich", "safetensors"),
        *("tokenizers", "ttnn", "yaml"),
    }
)
REPORT = """
import json, shlex, sys
before = len(sys.modules)
from cli.main import main
codes = {main(shlex.split(line)) for line in LINES}
print(json.dumps([*codes, len(sys.modules) - before, sorted(sys.modules)]), file=open(FILE, "w"))
"""
FIRST_IMPORTS = len(("cli", "cli.main", "signal"))
"""Imports before Ctrl-C is handled."""
ANNOUNCED = """
import json, shlex, sys
from cli.main import main
from cli.output import Output

def announce(self, text):
    announced.append(line)
    raise SystemExit

Output.announce, announced = announce, []
for line in LINES:
    try:
        main(shlex.split(line))
    except SystemExit:
        pass
print(json.dumps([announced, sorted(sys.modules)]), file=open("report", "w"))
"""
INTERRUPTED = """
import os, signal, sys

class Interrupt:
    seen = 0

    def find_spec(self, name, *_):
        self.seen += 1
        if self.seen == NUMBER:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from cli.main import main
code = main()
print(f"{sys.meta_path[0].seen} imports", file=sys.stderr)
sys.exit(code)
"""


def run(script: str, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIERMESH_")}
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True, text=True, check=False, cwd=folder or REPOSITORY_ROOT, timeout=120,
        env={**kept, "PYTHONPATH": str(REPOSITORY_ROOT)},
    )  # fmt: skip


def imported(lines: list[str], folder: Path, code: int) -> tuple[int, set[str]]:
    """Run commands in one process; return the number of modules that they import, and the heavy ones among them."""
    report = folder / "report"
    done = run(REPORT.replace("LINES", repr(lines)).replace("FILE", repr(str(report))), folder=folder)
    found, count, names = json.loads(report.read_text())
    assert found == code, done.stderr
    return count, HEAVY & {*names}


NAMES = [name for entries in SECTIONS.values() for name in entries]
LIGHT = {
    0: ["--help", "--version", "completion bash", *(f"{name} --help" for name in NAMES)],
    2: [
        "nonsense",
        *(f"{name} --nonsense" for name in NAMES),
        "local job.yaml --workers 0",
        "local job.yaml --tiers 3 --shards 2",
        "local job.yaml --timeline timelines --timeline-steps 9-3",
        "local job.yaml --log-level loud",
        "launch",
        "worker --aggregator nowhere",
        "worker --listen nowhere",
        "worker --log-format xml",
        "aggregator --timeout lunch=900",
        "aggregator --heartbeat-seconds 0",
        "aggregator --retain logs=30d",
        "aggregator --shards a:1,a:1",
        "submit job.yaml --aggregator nowhere",
        "jobs --timeout-seconds 0",
        "prune --older-than 30",
        "check",
        "jobs --tls-ca missing.pem",
        "worker --tls-cert missing.pem",
        "aggregator --shard --standby",
        "aggregator --timeout stall=1",
    ],
}
"""Command lines that import nothing heavy, by their exit code."""


def test_help_and_wrong_flags_import_nothing_heavy_and_make_no_folder(tmp_path: Path) -> None:
    for code, lines in LIGHT.items():
        _, heavy = imported(lines, tmp_path, code)
        assert heavy == set()
    assert [each.name for each in tmp_path.iterdir()] == ["report"]


@pytest.mark.parametrize(
    ("line", "code", "limit"),
    [("--help", 0, 130), ("jobs --limit 0", 2, 90), ("local job.yaml --workers 0", 2, 90)],
)
def test_few_modules_are_imported(line: str, code: int, limit: int, tmp_path: Path) -> None:
    assert imported([line], tmp_path, code)[0] < limit


def test_commands_of_people_import_neither_a_device_nor_arrays(tmp_path: Path) -> None:
    for line in ("jobs", "status", "logs JOB", "cancel JOB", "prune JOB --dry-run"):
        count, heavy = imported([f"{line} --aggregator {NOBODY}"], tmp_path, 1)
        assert heavy <= {"google.protobuf", "grpc"}, line
        assert count < 400, line


def test_commands_say_what_they_do_before_heavy_imports(tmp_path: Path) -> None:
    lines = [line for line in first_sign.LINES if line.split()[0] not in SILENT]
    done = run(ANNOUNCED.replace("LINES", repr(lines)), folder=tmp_path)
    announced, names = json.loads((tmp_path / "report").read_text())
    assert announced == lines, done.stderr
    assert HEAVY & {*names} == set()


def test_ctrl_c_during_any_import_is_one_line() -> None:
    for line, json_too in ((f"jobs --aggregator {NOBODY}", False), ("--help", True)):
        words = [*shlex.split(line), *(["--json"] if json_too else [])]
        seen = int(run(INTERRUPTED.replace("NUMBER", "0"), *words).stderr.splitlines()[-1].split()[0])
        assert seen > 20
        first = 1 + FIRST_IMPORTS
        for number in sorted(random.Random(1).sample(range(first, seen), min(12, seen - first))):
            done = run(INTERRUPTED.replace("NUMBER", str(number)), *words)
            assert done.returncode == 1, number
            assert done.stderr.splitlines()[0] == "tiermesh: interrupted", number
            assert done.stdout == ('{"error": "interrupted", "exit_code": 1}\n' if json_too else "")


@pytest.mark.parametrize("name", NAMES)
def test_examples_parse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY_ROOT)
    (entry,) = (entries[name] for entries in SECTIONS.values() if name in entries)
    command = entry.load()
    assert command.hidden or entry.examples
    named = set()
    for example in entry.examples:
        assert len(f"    tiermesh {example}") <= 80
        first, *arguments = shlex.split(example.partition(" >>")[0])
        assert first == name
        with click.Context(tiermesh) as context:
            parsed = command
            if isinstance(command, click.Group) and arguments[0] in command.commands:
                named.add(arguments[0])
                parsed = command.commands[arguments.pop(0)]
            parsed.make_context(name, arguments, parent=context).close()
    if isinstance(command, click.Group):
        assert named == {*command.commands}


@pytest.mark.parametrize(
    ("shell", "marker"),
    [("bash", "complete -o nosort -F _tiermesh_completion tiermesh"), ("zsh", "#compdef tiermesh")],
)
def test_completion_scripts_are_complete(
    shell: str, marker: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["completion", shell]) == 0
    assert marker in capsys.readouterr().out
    monkeypatch.setenv("_TIERMESH_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "tiermesh jobs --li")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        main([])
    assert "--limit" in capsys.readouterr().out


def test_the_command_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["certs"]):
        assert main(words) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and len(captured.err.splitlines()) > 8
