"""What people write (tt-train's YAML files), and the complete job that becomes of it."""

from __future__ import annotations

from services.config.corpus import read_corpus, read_tokenizer
from services.config.job import JobConfig
from services.config.load import load_job
from services.config.parts import (
    DataConfig,
    DeviceConfig,
    GPT2Config,
    LinearRegressionConfig,
    ModelConfig,
    OptimizerConfig,
    SamplingConfig,
    ScheduleConfig,
)

__all__ = [
    "DataConfig",
    "DeviceConfig",
    "GPT2Config",
    "JobConfig",
    "LinearRegressionConfig",
    "ModelConfig",
    "OptimizerConfig",
    "SamplingConfig",
    "ScheduleConfig",
    "load_job",
    "read_corpus",
    "read_tokenizer",
]
