"""timeline: share of the exchange that computing hides, from a timeline recorded by the daemons; also draws a step.

Two workers train a GPT of 10.7 M parameters (stepped_cluster.py) with 3 sequences of 256 tokens each, bfloat16 on the
wire and 2 tiers. Each role runs on a host of its own on links of 1 Gbit/s (hosts.py), or all run on loopback where that
is not possible. The result is `build/bench/timeline/timeline.json`, for a trace viewer, and `step.svg`.
"""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.harness.hosts import GIGABIT, Host, Hosts
from benchmarks.harness.job_settings import BUILD
from benchmarks.harness.report import Skipped, report
from benchmarks.harness.stepped_cluster import SteppedCluster
from cli.timeline.picture import write
from cli.timeline.trace import Payload

NAME = "timeline"
WORKERS = 2
SETTINGS = ("batch_size=3",)
WARM_UP_STEPS, STEPS = 3, 12
FIRST_STEP, LAST_STEP = 5, 12
WRITTEN_SECONDS = 10.0
LEAST_UP, LEAST_DOWN = 0.75, 0.75
"""Bounds: share of the gradients hidden by the backward pass, and of the weights by the next forward pass."""


def run() -> bool:
    """Record a run, draw a step, and report the hidden shares."""
    folder = BUILD / NAME / "daemons"
    flags = ("--timeline", str(folder), "--timeline-steps", f"{FIRST_STEP}-{LAST_STEP}")
    with ExitStack() as stack:
        hosts, link = _hosts(stack)
        cluster = stack.enter_context(
            SteppedCluster(
                NAME, workers=WORKERS, settings=SETTINGS, options=("--no-shared-memory", *flags), hosts=hosts
            )
        )
        cluster.gate.warm_up(WARM_UP_STEPS)
        seconds = cluster.gate.step_seconds(STEPS)
        for name in cluster.processes:  # The timeline files are complete.
            cluster.wait_written(name, folder / f"{name}.json", WRITTEN_SECONDS)
    trace = write(folder, BUILD / NAME)
    up, down = trace.overlap(Payload.GRADIENTS), trace.overlap(Payload.WEIGHTS)
    per_step = 1e3 / len(trace.steps) / WORKERS
    reached = report(
        "timeline_gradients_hidden",
        up.share,
        LEAST_UP,
        f"{WORKERS} workers, {link}; steps {trace.steps[0]} to {trace.steps[-1]} of {1e3 * seconds:.0f} ms each",
        f"of a worker's step gradients are on their way for {up.transfer_seconds * per_step:.0f} ms, "
        f"{up.hidden_seconds * per_step:.0f} of them under its backward pass; "
        f"weights for {down.transfer_seconds * per_step:.0f} ms, "
        f"{down.hidden_seconds * per_step:.0f} of them under its next forward pass",
        f"drawn: {BUILD / NAME / 'step.svg'}; for a trace viewer: {BUILD / NAME / 'timeline.json'}",
        at_least=True,
    )
    return report("timeline_weights_hidden", down.share, LEAST_DOWN, at_least=True) and reached


def _hosts(stack: ExitStack) -> tuple[dict[str, Host], str]:
    """Return the hosts of the roles, and a description of the links between them."""
    names = ["aggregator", *(f"worker-{number}" for number in range(1, WORKERS + 1))]
    try:
        network = stack.enter_context(Hosts(names, GIGABIT))
    except Skipped as skipped:
        return {}, f"loopback ({skipped})"
    return network.by_name, f"links of {GIGABIT / 1e9:g} Gbit/s"
