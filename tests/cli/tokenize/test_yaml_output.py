"""`tiermesh tokenize -o ids.yaml`: tt-train's file of ids, written in pieces, and read by a job as the same ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cli.main import main
from cli.tokenize import encoding
from services.config.corpus import python_reference_text
from services.config.load import load_job
from services.corpora import writer
from services.corpora.conversion import converted
from services.corpora.token_file import TokenFile
from tests.support.training_runs import train
from training.data.tokenizer import build_character_tokenizer

TEXT = python_reference_text()[:3000]
TOKENIZER = build_character_tokenizer(TEXT)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "tokenizer.json").write_text(TOKENIZER.to_json())
    return [
        "tokenize",
        str(tmp_path / "a.txt"),
        "--tokenizer",
        str(tmp_path),
        "-o",
        str(tmp_path / "ids.yaml"),
    ]


@pytest.mark.parametrize("batch", [1, 64, 1 << 20])
def test_it_means_what_pyyaml_and_jobs_read(
    tmp_path: Path,
    arguments: list[str],
    batch: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", batch)
    assert main([*arguments, "--document-separator", "\n", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    expected = TOKENIZER.encode(TEXT.replace("\n", "")).tolist()
    path = tmp_path / "ids.yaml"
    assert yaml.safe_load(path.read_text()) == {
        "tokenizer_vocab_size": TOKENIZER.size, "data_length": len(expected), "tokens": expected,
    }  # fmt: skip
    assert max(map(len, path.read_text().splitlines())) <= 110
    found = TokenFile.open(converted(path, "data_path"), "data_path")
    assert found.read(0, found.count).tolist() == expected
    assert found.tokenizer_vocab_size == TOKENIZER.size
    assert (result["ids"], result["bytes"]) == (len(expected), path.stat().st_size)
    assert (result["dtype"], result["sha256"], result["largest_id"]) == (None, None, max(expected))


def test_a_job_trains_to_the_bits_of_the_same_ids_as_npy(tmp_path: Path, arguments: list[str]) -> None:
    assert main(arguments) == 0
    np.save(tmp_path / "ids.npy", TOKENIZER.encode(TEXT).astype(np.uint32))

    def outcome(name: str) -> Any:
        document = {
            "training_config": {"data_path": name, "batch_size": 2, "max_steps": 3, "seed": 3},
            "transformer_config": {
                "num_heads": 2, "embedding_dim": 64, "num_blocks": 1, "max_sequence_length": 32,
                "vocab_size": TOKENIZER.size,
            },
        }  # fmt: skip
        (tmp_path / "job.yaml").write_text(json.dumps(document))
        losses, weights = train(load_job(tmp_path / "job.yaml")[0], 3)
        return losses, weights.tobytes()

    assert outcome("ids.yaml") == outcome("ids.npy")


def test_more_than_a_job_can_read_is_refused(
    tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(writer, "ID_TEXT_BYTES", 2000)
    assert main(arguments) == 2
    assert "ids.yaml: 3000 ids take more than the" in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.txt", "tokenizer.json"]
