"""memory_estimate: largest difference of `tiermesh validate`'s memory of a chip from the peak of a training step.

Both are of the worker's own passes on the emulator, which allocates as ttnn does (`tests/contract/test_memory.py`):
weights, a micro-batch, and a held-out batch. The jobs are nanoGPT's and nanollama3's character models at 4 x 256
tokens, and nanollama3 with a vocabulary of 32,000.
`tests/services/sizing` compares the small models of the contract under every strategy, mesh and dtype.
"""

from __future__ import annotations

from benchmarks.harness.job_settings import load_nanollama, load_setting, mesh_of
from benchmarks.harness.report import report
from services.config.job import JobConfig
from services.printable import format_bytes
from services.sizing.device_memory import estimate_device_memory
from tests.support.contract.peak_memory import run_passes

BOUND = 0.1
BANKS = 12
"""DRAM banks of the emulator's chips."""
NANOGPT = "model_config=model_configs/nanogpt_char.yaml"
NANOLLAMA = "model_config=model_configs/nanollama3_char.yaml"
RECOMPUTED = "transformer_config.runner_type=memory_efficient"
TWO_CHIPS = "mesh_shape=[1, 2]"
FOUR_CHIPS = "mesh_shape=[2, 2]"
JOBS = {
    "nanogpt": (NANOGPT,),
    "nanogpt, memory_efficient": (NANOGPT, RECOMPUTED),
    "nanogpt, tied, ddp": (NANOGPT, "weight_tying=enabled", TWO_CHIPS, "enable_ddp=true"),
    "nanogpt, tp": (NANOGPT, TWO_CHIPS, "enable_tp=true"),
    "nanollama3": (NANOLLAMA,),
    "nanollama3, memory_efficient, fsdp": (NANOLLAMA, RECOMPUTED, TWO_CHIPS, "enable_fsdp=true"),
    "nanollama3, ddp and tp": (NANOLLAMA, "num_groups=2", FOUR_CHIPS, "enable_ddp=true", "enable_tp=true"),
    "nanollama3, wide": (NANOLLAMA, "intermediate_dim=2048", "dropout_prob=0.1"),
}


def run() -> bool:
    """Measure and estimate each job in bfloat16, and nanoGPT in float32 too."""
    batches = ("batch_size=4", "validation_batch_size=4")
    jobs = [
        *((name, load_setting(*settings, *batches, "dtype=bfloat16")) for name, settings in JOBS.items()),
        ("nanogpt, float32", load_setting(NANOGPT, *batches, "dtype=float32")),
        ("nanollama3, vocabulary 32,000", load_nanollama("batch_size=1", "dtype=bfloat16")),
    ]
    measured = [_compare(name, config) for name, config in jobs]
    return report(
        "memory_estimate", max(each for each, _ in measured), BOUND, *(line for _, line in measured)
    )


def _compare(name: str, config: JobConfig) -> tuple[float, str]:
    """Return the relative difference of estimate and peak, and a line about it."""
    with mesh_of(config) as mesh:
        vocabulary, peak_bytes = run_passes(config, mesh)
    estimate = estimate_device_memory(config, vocabulary, dtype=config.device.dtype or "float32", banks=BANKS)
    assert estimate is not None
    difference = estimate.total_bytes / peak_bytes - 1
    return abs(difference), (
        f"{name}: {format_bytes(estimate.total_bytes)} estimated, {format_bytes(peak_bytes)} measured "
        f"({difference:+.1%}), the peak is in: {estimate.peak}"
    )
