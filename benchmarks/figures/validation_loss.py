"""nanogpt_validation_loss_N_tier: loss over the whole held-out split after training the setting in a cluster."""

from __future__ import annotations

from benchmarks.harness.local_cluster import result_of, start_local, state_dir
from benchmarks.harness.report import report

BOUND = 1.90
WORKERS = 2


def run(tiers: int) -> bool:
    """Train for all 2,000 steps and report the loss."""
    name = f"nanogpt_validation_loss_{tiers}_tier"
    state = state_dir(name)
    result = result_of(start_local(state, tiers, WORKERS), state)
    return report(
        name,
        result["validation_loss"],
        BOUND,
        f"{result['steps']} steps by {WORKERS} workers in {result['seconds']:.0f} s, {result['tokens_per_second']:.0f} "
        f"tokens/s; model_sha256 {result['model_sha256']}",
        decimals=4,
    )
