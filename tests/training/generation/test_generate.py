"""Text from a checkpoint: the same seed gives the same text, and a folder without a text model is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models, pre_tokenizers

from mesh.device import Mesh
from services.checkpoints.write import (
    write_checkpoint,
)
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import GPT2Config, LinearRegressionConfig, LlamaConfig
from services.corpora.token_file import describe_token_file
from services.errors import Refused
from services.tensors.layout import Layout
from training.data.tokenizer import Tokenizer, build_character_tokenizer
from training.generation.generate import Text, generate
from training.step import TrainingStep

TEXT = "abcdefgh" * 100


def save(root: Path, config: JobConfig, mesh: Mesh, **changes: Any) -> Path:
    step = TrainingStep(config, mesh)
    fields: dict[str, Any] = {"layout": step.layout, "weights": step.initial_weights(), **changes}
    mesh.close()
    info = write_checkpoint(
        root / "job",
        job="1",
        generation=1,
        step=0,
        config_json=config.to_json(),
        optimizer_state={},
        files=step.checkpoint_files(),
        **fields,
    )
    return info.path


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return JobConfig(
        model=GPT2Config(num_heads=2, embedding_dim=64, num_blocks=1, max_sequence_length=32, bias=False),
        data=DataConfig(
            files=(CorpusFile(path=str(path), sha256=hashlib.sha256(TEXT.encode()).hexdigest()),)
        ),
    )


def test_the_seed_determines_the_text(tmp_path: Path, mesh: Mesh, config: JobConfig):
    checkpoint = save(tmp_path, config, mesh)
    # 60 tokens: past the 32 that the model has positions for.
    first = "".join(generate(checkpoint, "abc", max_new_tokens=60, seed=1))
    assert first == "".join(generate(checkpoint, "abc", max_new_tokens=60, seed=1))
    assert first != "".join(generate(checkpoint, "abc", max_new_tokens=60, seed=2))
    assert set(first) <= set("abcdefgh")


def test_the_likeliest_token_is_the_one_that_training_predicts(
    tmp_path: Path, open_emulator: Callable[..., Mesh], config: JobConfig
):
    """Use a model whose blocks add nothing and whose projection is the embedding: it repeats its last token."""
    config = config.model_copy(update={"model": config.model.model_copy(update={"weight_tying": True})})
    step = TrainingStep(config, open_emulator())
    weights = step.initial_weights()
    for entry in step.layout.entries:
        if ".projection." in entry.name or entry.name == "position_embedding.weight":
            weights[entry.offset : entry.stop] = 0
    checkpoint = save(tmp_path, config, open_emulator(), weights=weights)
    assert "".join(generate(checkpoint, "gfe", max_new_tokens=5, temperature=0.0)) == "eeeee"
    assert "".join(generate(checkpoint, "e", max_new_tokens=5, temperature=0.0)) == "eeeee"


def test_a_checkpoint_of_token_ids_needs_a_tokenizer_beside_it(tmp_path: Path, mesh: Mesh, config: JobConfig):
    ids = tmp_path / "ids.bin"
    (np.arange(800) % 11).astype("<u2").tofile(ids)
    sidecar = describe_token_file(ids, "data_path")
    file = CorpusFile(path=str(ids), kind="tokens", sha256=sidecar.sha256, identity=sidecar.identity)
    model = config.model.model_copy(update={"vocab_size": 11})
    data = DataConfig(files=(file,), tokenizer_type="none", vocab_size=11)
    checkpoint = save(tmp_path, config.model_copy(update={"model": model, "data": data}), mesh)
    with pytest.raises(Refused, match=r"no tokenizer.json.*token ids.*copy the tokenizer"):
        next(generate(checkpoint, "abc"))
    (checkpoint / "tokenizer.json").write_text(build_character_tokenizer(TEXT).to_json())
    assert set("".join(generate(checkpoint, "abc", max_new_tokens=5))) <= set("abcdefgh")


LLAMA = LlamaConfig(
    num_heads=2, num_groups=1, embedding_dim=64, intermediate_dim=64, num_blocks=1, max_sequence_length=32
)


@pytest.mark.parametrize("llama", [False, True])
def test_a_hugging_face_folder_gives_the_text_of_its_checkpoint(
    tmp_path: Path, mesh: Mesh, config: JobConfig, llama: bool
):
    if llama:
        config = config.model_copy(update={"model": LLAMA})
    checkpoint = save(tmp_path, config, mesh)
    folder = tmp_path / "hugging_face"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(checkpoint / name, folder / name)
    settings: dict[str, Any] = {"max_new_tokens": 40, "seed": 3, "temperature": 0.8, "top_k": 6}
    text = "".join(generate(checkpoint, "abc", **settings))
    assert "".join(generate(folder, "abc", **settings)) == text
    # A token that ends texts ends this one.
    described = json.loads((folder / "config.json").read_text())
    ending = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"][text[10]]
    (folder / "config.json").write_text(json.dumps({**described, "eos_token_id": [ending]}))
    assert "".join(generate(folder, "abc", **settings)) == text[: text.index(text[10])]
    (folder / "tokenizer.json").unlink()
    with pytest.raises(Refused, match=r"no tokenizer\.json"):
        next(generate(folder, "abc"))


def test_text_is_complete_with_a_tokenizer_that_decodes_by_context():
    """Use a tokenizer that drops the first token's space and splits characters over several tokens."""
    words = {"▁the": 0, "▁cat": 1, "s": 2, "<0xC3>": 3, "<0xA9>": 4}
    inner = HuggingFaceTokenizer(models.WordLevel(words))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = Tokenizer(inner)
    ids = [0]
    text = Text(tokenizer, ids)
    pieces = []
    for token in [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 1, 3]:
        ids.append(token)
        pieces.append(text.grown())
    assert pieces[:4] == [" cat", "s", "", "é"]
    pieces.append(text.grown(at_end=True))
    assert "the" + "".join(pieces) == tokenizer.decode(ids)
    assert pieces[-1] != ""


@pytest.mark.parametrize(("prompt", "message"), [("", "prompt.*at least one"), ("xyz", "'x' at position 0")])
def test_a_prompt_that_cannot_be_encoded_is_refused(
    tmp_path: Path, mesh: Mesh, config: JobConfig, prompt: str, message: str
):
    checkpoint = save(tmp_path, config, mesh)
    with pytest.raises(Refused, match=message):
        next(generate(checkpoint, prompt))


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path):
    with pytest.raises(Refused, match="checkpoint"):
        next(generate(tmp_path / "nowhere", "a"))


def test_a_model_without_text_is_refused(tmp_path: Path, mesh: Mesh):
    config = JobConfig(model=LinearRegressionConfig(num_features=4, num_targets=2, training_samples=100))
    checkpoint = save(tmp_path, config, mesh)
    with pytest.raises(Refused, match=r"linear_regression.*gpt2 or llama"):
        next(generate(checkpoint, "a"))


def test_the_layout_of_another_release_is_refused(tmp_path: Path, mesh: Mesh, config: JobConfig):
    layout = TrainingStep(config, mesh).layout
    renamed = (replace(layout.entries[0], name="wte"), *layout.entries[1:])
    checkpoint = save(tmp_path, config, mesh, layout=Layout(renamed))
    with pytest.raises(Refused, match=r"token_embedding.*release"):
        next(generate(checkpoint, "a"))


def test_the_mesh_is_free_again_when_the_reader_stops_early(tmp_path: Path, mesh: Mesh, config: JobConfig):
    checkpoint = save(tmp_path, config, mesh)
    pieces = generate(checkpoint, "a", max_new_tokens=50)
    assert len(next(pieces)) == 1
    pieces.close()  # type: ignore[attr-defined]  # an iterator to callers, a generator here
    assert len("".join(generate(checkpoint, "a", max_new_tokens=3))) <= 3
