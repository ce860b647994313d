"""Measure the figures that benchmarks/README.md lists, and print each against its bound.

python -m benchmarks [NAME ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from services.errors import TiermeshError
from services.runtime import process

# Daemons do the same. Both calls must come before the import of numpy.
process.tune_allocator()
process.limit_blas_to_one_thread()

from benchmarks.figures import (  # noqa: E402  # see above
    adamw_over_memcpy,
    aggregator_memory,
    checksum,
    compute_process,
    crash_to_step,
    edit_to_step,
    emulator_over_torch,
    exchange,
    exposed,
    fault_cost,
    first_sign,
    job_time,
    jobs_list,
    launch,
    link_check,
    links,
    many_jobs,
    memory_efficient,
    memory_estimate,
    own_loop_clients,
    own_loop_cpu,
    own_loop_package,
    own_loop_pytorch,
    page,
    pipeline,
    pipeline_links,
    pipeline_transfers,
    recovery,
    reports,
    same_loss,
    scheduler,
    several_jobs,
    shared_memory,
    slow_uploads,
    soak,
    step_over_compute,
    step_time,
    tape_overhead,
    timeline,
    token_files,
    under_attack,
    under_layout_liar,
    validation_loss,
)
from benchmarks.harness.report import Skipped  # noqa: E402

FIGURES: dict[str, Callable[[], bool]] = {
    "emulator_over_torch": lambda: emulator_over_torch.nanogpt(threads=1),
    "emulator_over_torch_2_threads": lambda: emulator_over_torch.nanogpt(threads=2),
    "nanollama_over_torch_2_threads": lambda: emulator_over_torch.nanollama(threads=2),
    "memory_efficient": memory_efficient.run,
    "memory_estimate": memory_estimate.run,
    "pipeline": pipeline.run,
    "pipeline_links": pipeline_links.run,
    "pipeline_transfers": pipeline_transfers.run,
    "tape_overhead": tape_overhead.run,
    "step_over_compute": step_over_compute.run,
    "compute_process": compute_process.run,
    "step_time": step_time.run,
    "job_time": job_time.run,
    "own_loop_pytorch": own_loop_pytorch.run,
    "own_loop_cpu": own_loop_cpu.run,
    "adamw_over_memcpy": adamw_over_memcpy.run,
    "checksum": checksum.run,
    "crash_to_step": crash_to_step.run,
    "edit_to_step": edit_to_step.run,
    "exchange": exchange.run,
    "shared_memory": shared_memory.run,
    "aggregator_memory": aggregator_memory.run,
    "exposed": exposed.run,
    "links": links.run,
    "link_check": link_check.run,
    "timeline": timeline.run,
    "recovery": recovery.run,
    "fault_cost": fault_cost.run,
    "soak": soak.run,
    "under_attack": under_attack.run,
    "slow_uploads": slow_uploads.run,
    "under_layout_liar": under_layout_liar.run,
    "many_jobs": many_jobs.run,
    "first_sign": first_sign.run,
    "jobs_list": jobs_list.run,
    "launch": launch.run,
    "own_loop_package": own_loop_package.run,
    "own_loop_clients": own_loop_clients.run,
    "page": page.run,
    "reports": reports.run,
    "scheduler": scheduler.run,
    "several_jobs": several_jobs.run,
    "tokenize": token_files.tokenize,
    "token_file_open": token_files.opening,
    "token_file_memory": token_files.memory,
    "same_loss_as_peer": same_loss.run,
    "nanogpt_validation_loss_2_tier": lambda: validation_loss.run(tiers=2),
    "nanogpt_validation_loss_3_tier": lambda: validation_loss.run(tiers=3),
}

GROUPS = {"own_loop": ("own_loop_pytorch", "own_loop_cpu", "own_loop_package", "own_loop_clients")}
"""Figures that a name selects together."""


def main(names: list[str]) -> int:
    """Measure the named figures, or all of them. Return 0 if each measured figure keeps its bound, else 1."""
    names = [each for name in names for each in GROUPS.get(name, (name,))]
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        print(f"benchmarks: no figure {unknown[0]!r}; choose one of {', '.join(FIGURES)}", file=sys.stderr)
        return 2
    reached = True
    for name in names or FIGURES:
        try:
            reached &= FIGURES[name]()
        except Skipped as skipped:
            print(f"{name}: skipped: {skipped}", flush=True)
        except TiermeshError as error:
            print(f"{name}: failed: {error}", flush=True)
            reached = False
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
