"""Each of tt-train's own training configs validates, or is refused for a reason in the table below.

The configs are data beside this tree, not part of it. `test_dialects.py` has the same rules in files of our own.
Corpora and tokenizers are stood in for, because tt-train does not ship them with the configs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from services.config.job import JobConfig
from services.config.load import load_job, load_job_document, load_job_with_origins
from services.config.models import ModelConfig
from services.config.paths import REPOSITORY_ROOT
from services.config.settings import list_settings
from services.errors import Refused

UPSTREAM = next(
    (place for above in REPOSITORY_ROOT.parents if (place := above / "shared" / "upstream").is_dir()), None
)
PARTS = {"model_configs", "multihost_configs", "device_configs"}
CONFIGS = (
    sorted(path for path in UPSTREAM.glob("*/configs/**/*.yaml") if not PARTS & set(path.parts))
    if UPSTREAM
    else []
)
pytestmark = pytest.mark.skipif(UPSTREAM is None, reason="tt-train's own configs do not lie beside this tree")

TOKENIZERS = {"gpt2": 50257, "tinyllama": 32000}
"""Numbers of tokens of the tokenizers that the configs name."""

IMAGES = "is a setting of the MNIST example"
NOT_YET = "is not supported yet"

NOT_GIVEN = {
    "training_config.start_from", "training_config.tokenizer_path", "device_config.dtype",
    "transformer_config.rope_scaling", "training_config.max_workers",
}  # fmt: skip
"""Settings that stay null when no config gives them."""

REFUSED: dict[str, tuple[str, str]] = {
    # Another trainer's.
    "2025-11-10/training_mnist_mlp": ("training_config.logging_interval: ", IMAGES),
    "2026-04-25/mnist": ("training_config.logging_interval: ", IMAGES),
    # Models and optimizers that come later.
    "2026-04-25/training_shakespeare_nano_deepseek": ('transformer_config.model_type: "deepseek"', NOT_YET),
    "2026-04-25/training_shakespeare_tiny_deepseek": ('transformer_config.model_type: "deepseek"', NOT_YET),
    "2026-04-25/training_shakespeare_tinyllama_muon": ('optimizer.type: "MuonWithAdamW"', NOT_YET),
    # tt-train's own code refuses these: a batch, heads or groups that do not divide over the devices.
    "2026-04-25/training_shakespeare_tinyllama_3tier_fabric": ("training_config.batch_size: 8", "the 32 devices"),
    "2026-04-25/training_shakespeare_llama3_tensor_parallel": ("transformer_config.num_heads: 6", "the 8 devices"),
    "2026-04-25/training_shakespeare_tinyllama_tensor_parallel_3tier_fabric": (
        "transformer_config.num_groups: 4", "the 32 devices",
    ),
    "2026-04-25/training_shakespeare_tinyllama_tp_galaxy": ("transformer_config.num_groups: 4", "the 32 devices"),
}  # fmt: skip
"""Parts of the refusal's line, by date and name of the file."""


def name_of(path: Path) -> str:
    assert UPSTREAM is not None
    return f"{path.relative_to(UPSTREAM).parts[0]}/{path.stem}"


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the corpora and tokenizers that the configs name: small ones, in the folder of TIERMESH_DATA."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "shakespeare.txt").write_text("Speak, speak. " * 1000)
    for name, size in TOKENIZERS.items():
        vocabulary = {token: number for number, token in enumerate("Speak, .")}
        vocabulary |= {f"<{number}>": number for number in range(len(vocabulary), size)}
        model = {"type": "BPE", "vocab": vocabulary, "merges": []}
        (data / f"{name}-tokenizer.json").write_text(json.dumps({"model": model}))
    tokens = [number % 68 for number in range(8192)]
    (data / "tokenized_shakespeare.csv").write_text(" ".join(map(str, tokens)))
    (data / "tokenized_shakespeare_llama8b.yaml").write_text(
        f"tokenizer_vocab_size: 128256\ndata_length: {len(tokens)}\ntokens: {tokens}\n"
    )
    monkeypatch.setenv("TIERMESH_DATA", str(data))


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("path", CONFIGS, ids=name_of)
def test_a_config_of_tt_train_validates_or_is_refused_with_a_reason(path: Path) -> None:
    expected = REFUSED.get(name_of(path))
    if expected is None:
        (job, notices, *_), origins = load_job_with_origins(path)
        assert JobConfig.from_json(job.to_json()) == job
        assert all(len(notice) <= 300 for notice in notices)
        fields = [notice.partition(": ")[0] for notice in notices]
        assert len(set(fields)) == len(fields), "each setting is noticed once"
        assert not [notice for notice in notices if "is not counted" in notice]
        assert job.vocabulary is not None
        assert all(
            setting.value is not None or setting.key in NOT_GIVEN for setting in list_settings(job, origins)
        )
        return
    with pytest.raises(Refused) as caught:
        load_job(path)
    line = str(caught.value)
    assert all(part in line for part in expected), line


def test_every_config_is_there_and_in_the_table_once() -> None:
    assert len(CONFIGS) == 59
    assert REFUSED.keys() <= {name_of(path) for path in CONFIGS}


DEVIATIONS = {
    "nanogpt": {"weight_tying": True},  # as in tt-train of 2026-01
    "tinyllama": {"intermediate_dim": 5632},  # the width that follows, written out
    "tinyllama_loudbox_tp": {"intermediate_dim": 5632},
    "gpt2s": {"activation": "gelu_tanh", "runner_type": "default"},  # GPT-2's own; as in tt-train of 2026-06
}
"""Settings of shipped models that differ from tt-train's of 2026-04."""

MODELS = sorted(UPSTREAM.glob("*/configs/model_configs/*.yaml")) if UPSTREAM else []
HOSTS = sorted(UPSTREAM.glob("*/configs/multihost_configs/*.yaml")) if UPSTREAM else []


@pytest.mark.parametrize("path", MODELS, ids=name_of)
def test_a_shipped_model_is_that_of_tt_train(path: Path, tmp_path: Path) -> None:
    def read(model: Path) -> ModelConfig:
        training = {"model_config": str(model)}
        settings = ["mlp_config.training_samples=50"] if model.stem == "mlp_config" else ["num_blocks=1"]
        if model.stem != "mlp_config":
            training["data_path"] = "builtin:python-reference"
        return load_job_document({"training_config": training}, folder=tmp_path, overrides=settings)[0].model

    shipped = REPOSITORY_ROOT / "configs" / "model_configs" / path.name
    assert read(shipped) == read(path).model_copy(update=DEVIATIONS.get(path.stem, {}))
    blocks = [
        yaml.safe_load(each.read_text()).get("transformer_config", {}).get("num_blocks")
        for each in (path, shipped)
    ]
    assert blocks[0] == blocks[1]


@pytest.mark.parametrize("path", HOSTS, ids=name_of)
def test_shipped_hosts_are_those_of_tt_train(path: Path) -> None:
    shipped = REPOSITORY_ROOT / "configs" / "multihost_configs" / path.name
    assert yaml.safe_load(shipped.read_text()) == yaml.safe_load(path.read_text())
