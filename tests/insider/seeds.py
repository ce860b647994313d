"""One seed of a simulated cluster with an insider."""

from __future__ import annotations

import resource
import traceback
from typing import Any

from tests.insider.simulated import InsiderCluster
from tests.simulation.seeds import Outcome

MEMORY_BYTES = 2 << 30
"""Largest size of a process that runs seeds, so that a lie that takes all memory fails its seed alone."""


def run_limited(seed: int, *, rows: bool) -> Outcome:
    """Run one seed in a process of the pool, whose memory is limited."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    return run_seed(seed, rows=rows)


def run_seed(seed: int, *, rows: bool = False, tracing: bool = False, **focus: Any) -> Outcome:
    """Run one seed to its end, or to its first failed check.

    Args:
        seed: the seed.
        rows: whether its job may have a pipeline.
        tracing: whether to print inputs and effects.
        **focus: further arguments of `InsiderCluster`.
    """
    cluster = InsiderCluster(seed, rows=rows, tracing=tracing, **focus)
    problem = ""
    try:
        cluster.run()
    except Exception as error:
        if tracing:
            traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)[-1]
        lies = f"{cluster.role.value}: {'; '.join(cluster.liar.told):.300}"
        problem = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno}); {lies}"
    return Outcome(seed, cluster.commits, problem, cluster.injected)
