"""`tiermesh generate`: what is printed before, with and in place of a text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.generate import run
from cli.output import Output
from services.errors import Refused


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a folder that is taken for a checkpoint."""
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def generate_with(pieces: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have these pieces generated, or the prompt `wrong` refused."""

    def generate(folder: Path, prompt: str, **settings: Any) -> Iterator[str]:
        del folder, settings
        if prompt == "wrong":
            raise Refused("prompt: unknown character")
        yield from pieces

    monkeypatch.setattr("training.generation.generate.generate", generate)


@pytest.mark.parametrize(("pieces", "shown"), [(["a", "b"], "The ab\n"), ([], "The \n")])
def test_a_text_follows_its_prompt(
    checkpoint: Path,
    pieces: list[str],
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    generate_with(pieces, monkeypatch)
    run(checkpoint, "The ", Output())
    assert capsys.readouterr().out == shown


def test_a_prompt_that_is_refused_is_not_printed(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generate_with([], monkeypatch)
    with pytest.raises(Refused, match="unknown character"):
        run(checkpoint, "wrong", Output())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("below", [".", "checkpoints"])
def test_the_newest_job_below_a_folder_without_checkpoints_is_named(tmp_path: Path, below: str) -> None:
    for job in ("1125-b", "1126-a"):
        (tmp_path / below / job / "step-00000007").mkdir(parents=True)
    with pytest.raises(Refused, match=r"no checkpoint found; give .*1126-a$"):
        run(tmp_path, "The ", Output())
