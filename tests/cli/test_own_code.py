"""`--code FOLDER`: what is sent with a job, what `validate` says of it, and what is refused before anything is sent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.jobs import read_job
from cli.main import main
from cli.output import Output
from services.files.code_archive import unpack_code
from services.files.code_folder import write_code_folder

JOB = """
training_config: {{data_path: text.txt, max_steps: 3, batch_size: 4}}
transformer_config: {{model_type: "{model}", max_sequence_length: 32, width: 32, layers: 1}}
"""
FILES = {"mixer.py": b"1 / 0  # never run\n", "mixing.py": b"", "shapes/one.json": b"{}"}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("".join(f"{number} comes next.\n" for number in range(200)))
    write_code_folder(tmp_path / "code", FILES)
    return tmp_path / "code"


def write_job(folder: Path, model: str = "mixer:Mixer") -> Path:
    path = folder / "job.yaml"
    path.write_text(JOB.format(model=model))
    return path


def test_a_job_brings_the_folder_along(code: Path) -> None:
    job = write_job(code.parent)
    submission = read_job(job, [], Output(), code)
    assert submission.config.code is not None and submission.config.code.path == str(code)
    assert unpack_code(submission.code) == FILES
    (code / "mixing.py").write_text("x = 1\n")
    changed = read_job(job, [], Output(), code).config.code
    assert changed is not None and changed.sha256 != submission.config.code.sha256
    assert read_job(job, [], Output()).config.code is None


def test_validate_checks_the_code_without_running_it(code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    submission = read_job(write_job(code.parent), [], Output(), code)
    assert submission.config.code is not None
    assert main(["validate", str(code.parent / "job.yaml"), "--code", str(code), "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out.splitlines()[-1])["code_sha256"] == submission.config.code.sha256
    )
    assert main(["validate", str(code.parent / "job.yaml"), "--code", str(code)]) == 0
    assert "code of the job: 3 files, " in capsys.readouterr().out


@pytest.mark.parametrize("command", ["submit", "local", "validate"])
@pytest.mark.parametrize(
    ("change", "model", "reason"),
    [
        (None, "gpt2", "given with model_type gpt2, expected a model of your own"),
        (None, "other:Mixer", "has no other.py, which transformer_config.model_type names"),
        (
            lambda code: (code / "queue.py").touch(),
            "mixer:Mixer",
            "queue.py has the name of a module of Python",
        ),
        (lambda code: (code / "training.py").touch(), "mixer:Mixer", "training.py has the name of a module"),
        (lambda code: (code / "link").symlink_to("/etc"), "mixer:Mixer", "link: is a symbolic link"),
        (lambda code: os.mkfifo(code / "pipe.py"), "mixer:Mixer", "pipe.py: is a pipe"),
        (lambda code: code.rename(code.parent / "moved"), "mixer:Mixer", "can't be read (No such file"),
    ],
    ids=["model", "module", "python", "tiermesh", "link", "pipe", "absent"],
)
def test_what_can_not_be_sent_is_refused_by_name_before_anything_starts(
    code: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    change: Callable[[Path], object] | None,
    model: str,
    reason: str,
) -> None:
    if change is not None:
        change(code)
    job = write_job(code.parent, model)
    if model == "gpt2":
        job.write_text(JOB.format(model=model).replace(", width: 32, layers: 1", ""))
    assert main([command, str(job), "--code", str(code)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "--code" in lines[0] and reason in lines[0], lines
