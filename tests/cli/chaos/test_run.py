"""Outcomes of `tiermesh chaos`: same bits, other bits, a job that failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.chaos import run as chaos_run
from cli.main import main
from protos import jobs_pb2


def outcome(sha256: str, undisturbed: str | None, state: int = jobs_pb2.SUCCEEDED) -> chaos_run._Outcome:
    def job(name: str, sha256: str) -> jobs_pb2.Job:
        return jobs_pb2.Job(id=name, state=state, model_sha256=sha256)

    return chaos_run._Outcome(
        job("with", sha256), (), None if undisturbed is None else job("without", undisturbed)
    )


@pytest.mark.parametrize(
    ("made", "code", "same_bits", "error"),
    [
        (outcome("a1", "a1"), 0, True, ""),
        (outcome("a1", None), 0, None, ""),
        (outcome("a1", "b2"), 1, False, "model_sha256 a1 with the faults of --seed 7, but b2"),
        (outcome("", None, jobs_pb2.FAILED), 1, None, "job with failed"),
    ],
)
def test_the_exit_code_depends_on_whether_the_bits_are_the_same(
    made: chaos_run._Outcome,
    code: int,
    same_bits: bool | None,
    error: str,
    job_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def run(*_: object) -> chaos_run._Outcome:
        return made

    monkeypatch.setattr(chaos_run, "_run", run)
    arguments = ["chaos", str(job_file), "--seed", "7", "--state-dir", str(tmp_path / "state"), "--json"]
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["same_bits"] is same_bits
    assert error in captured.err


def test_a_wrong_job_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chaos", str(tmp_path / "none.yaml"), "--state-dir", str(tmp_path / "state")]) == 2
    assert "none.yaml" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
