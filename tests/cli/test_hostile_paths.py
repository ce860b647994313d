"""Whatever path a person gives, a command that can't use it says so in one line with exit code 1, 2 or 75."""

from __future__ import annotations

import os
from io import RawIOBase
from pathlib import Path

import pytest

from cli.main import main
from services import input_files
from services.errors import Refused
from services.runtime.process import make_state_dir

ADDRESS = ("--aggregator", "127.0.0.1:1", "--timeout-seconds", "0.1")
JOB = "configs/training_configs/linear_regression.yaml"
COMMANDS: dict[str, tuple[str, ...]] = {
    "validate": ("validate", "PATH"),
    "validate --config": ("validate", JOB, "--config", "PATH"),
    "submit": ("submit", "PATH", *ADDRESS),
    "local": ("local", "PATH", "--state-dir", "STATE"),
    "local --state-dir": ("local", JOB, "--state-dir", "PATH"),
    "chaos": ("chaos", "PATH", "--state-dir", "STATE"),
    "generate": ("generate", "PATH"),
    "timeline": ("timeline", "PATH"),
    "tokenize": ("tokenize", "PATH", "--tokenizer", "missing", "-o", "STATE"),
    "tokenize --tokenizer": ("tokenize", JOB, "--tokenizer", "PATH", "-o", "ids.bin"),
    "tokenize --output": ("tokenize", JOB, "--tokenizer", JOB, "-o", "PATH"),
    "status": ("status", "PATH", *ADDRESS),
    "logs": ("logs", "PATH", *ADDRESS),
    "cancel": ("cancel", "PATH", *ADDRESS),
    "download": ("download", "J", "PATH", *ADDRESS),
    "jobs --tls-ca": ("jobs", *ADDRESS, "--tls-ca", "PATH"),
    "jobs --token-file": ("jobs", *ADDRESS, "--token-file", "PATH"),
    "certs init": ("certs", "init", "--dir", "PATH"),
    "certs issue": ("certs", "issue", "worker", "w", "--dir", "PATH"),
    "certs renew": ("certs", "renew", "worker", "w", "--dir", "PATH"),
    "certs revoke": ("certs", "revoke", "worker", "w", "--dir", "PATH"),
    "certs show": ("certs", "show", "--dir", "PATH"),
    "tokens issue": ("tokens", "issue", "ada", "--tokens", "PATH"),
    "tokens issue --out": ("tokens", "issue", "ada", "--tokens", "STATE", "--out", "PATH"),
    "tokens show": ("tokens", "show", "--tokens", "PATH"),
    "tokens revoke": ("tokens", "revoke", "0", "--tokens", "PATH"),
    "cluster show": ("cluster", "show", "--state-dir", "PATH"),
    "cluster adopt": ("cluster", "adopt", "0123456789abcdef", "--state-dir", "PATH"),
}
PATHS = {
    "too long a name": "x" * 5000,
    "too long a path": "/".join(["y" * 200] * 30),
    "not UTF-8": os.fsdecode(b"/nowhere/\xff\xfe"),
    "below a file": "/etc/hostname/below",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_path_that_cannot_be_used_is_refused_in_one_line(
    command: tuple[str, ...], path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"PATH": path, "STATE": str(tmp_path / "state")}
    code = main([words.get(each, each) for each in command])
    (line,) = capsys.readouterr().err.splitlines()
    assert code in (1, 2, 75), line
    assert "internal error" not in line and line.isprintable()
    assert len(line) <= 300


def test_certificates_of_a_folder_without_an_authority_are_not_listed_as_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certs", "show", "--dir", str(tmp_path)]) == 2
    assert "no authority is there" in capsys.readouterr().err


def test_a_variable_that_is_not_utf_8_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIERMESH_AGGREGATOR", "\udcff:1")
    assert main(["jobs"]) == 2
    assert "TIERMESH_AGGREGATOR: '\\udcff:1' is not UTF-8" in capsys.readouterr().err


def test_a_state_dir_below_a_folder_that_is_not_utf_8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(Refused, match="is not UTF-8"):
        make_state_dir(Path("state"))


def test_a_file_whose_content_would_have_to_be_waited_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as /proc/kmsg: a regular file whose reader waits."""

    class NotYetReadable(RawIOBase):
        def read(self, size: int = -1, /) -> bytes | None:
            return None

    monkeypatch.setattr(input_files, "open_input_file", lambda *_: NotYetReadable())
    with pytest.raises(Refused, match="has no content yet"):
        input_files.read_input_file("--config", Path("kmsg"), 10)
