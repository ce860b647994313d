"""`--allow-models` reaches the worker from a flag, the environment or a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import worker.daemon
from cli.daemon_commands import worker as worker_command


@pytest.mark.parametrize(
    ("flags", "environment", "content", "expected"),
    [
        ([], {}, None, ()),
        (["--allow-models", "a.b", "--allow-models", "c:D"], {}, None, ("a.b", "c:D")),
        ([], {"TIERMESH_ALLOW_MODELS": "a.b c:D"}, None, ("a.b", "c:D")),
        ([], {}, "allow-models: [a.b, 'c:D']\n", ("a.b", "c:D")),
        (["--allow-models", "e"], {"TIERMESH_ALLOW_MODELS": "a.b"}, "allow-models: [c]\n", ("e",)),
    ],
)
def test_the_worker_gets_the_modules(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    environment: dict[str, str],
    content: str | None,
    expected: tuple[str, ...],
):
    received: list[Any] = []

    def run(options: Any, **parts: Any) -> int:
        received.append(options)
        return 0

    monkeypatch.setattr(worker.daemon, "run", run)
    if content is not None:
        path = tmp_path / "worker.yaml"
        path.write_text(content)
        flags = ["--config", str(path), *flags]
    result = CliRunner().invoke(worker_command, flags, env=environment)
    assert result.exit_code == 0, result.output
    assert [options.allowed_models for options in received] == [expected]
