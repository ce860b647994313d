"""What people write (tt-train's YAML files), and the complete job that becomes of it."""

from __future__ import annotations

from services.config.corpus import read_corpus, read_tokenizer
from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.load import load_job
from services.config.models import (
    CustomConfig,
    GPT2Config,
    LinearRegressionConfig,
    LlamaConfig,
    MLPConfig,
    ModelConfig,
    RegressionConfig,
    RopeScaling,
    TransformerConfig,
)
from services.config.records import (
    DataConfig,
    OptimizerConfig,
    PretrainedConfig,
    SamplingConfig,
    ScheduleConfig,
    WireConfig,
)

__all__ = [
    "CustomConfig",
    "DataConfig",
    "DeviceConfig",
    "GPT2Config",
    "JobConfig",
    "LinearRegressionConfig",
    "LlamaConfig",
    "MLPConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PretrainedConfig",
    "RegressionConfig",
    "RopeScaling",
    "SamplingConfig",
    "ScheduleConfig",
    "TransformerConfig",
    "WireConfig",
    "load_job",
    "read_corpus",
    "read_tokenizer",
]
