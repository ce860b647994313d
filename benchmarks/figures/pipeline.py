"""pipeline: bubble, memory, and what a dead stage costs, of pipelines over real workers.

Each stage is a `tiermesh worker` with its blocks of a GPT (harness/paced_cluster.py). Its passes take the same time for
each block, most of which is a pause, so that the machine's cores don't matter.

* Bubble: largest distance of the idle share of all stages from (p-1)/(vm+p-1), as a share of that, from the first
  forward to the last backward pass of a step. What a pass takes longer than it should counts as idle.
* Memory: peak of what a stage's passes in flight keep, with 32 micro-batches over 8, as the workers report it.
* Share: peak memory of a stage's process, over an equal share of that of a worker that holds the whole model, through
  initialisation, steps and evaluations. What the same processes take with a model of next to no width is not counted.
* Death: a stage's worker is killed (SIGKILL) at a random moment of a step, with a spare there. The cost is the time
  until the step is committed, less a median step and what no schedule can help: detecting the death, building the
  stages on the spare and sending it their weights. The figure is the maximum.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.harness.logged_cluster import committed
from benchmarks.harness.paced_cluster import PacedCluster
from benchmarks.harness.report import median, report
from services.pipeline.schedule import ScheduleKind

BUBBLE_BOUND = 0.10
INTERLEAVED_BOUND = 0.15
MEMORY_BOUND = 1.05
SHARE_BOUND = 1.10
DEATH_BOUND = 1.2
STAGES = (2, 4)
MICRO_BATCHES = 8
MANY_MICRO_BATCHES = 32
PAUSE_SECONDS = 0.1
WARM_UP_STEPS, STEPS = 2, 3
NARROW, WIDE = 32, 1024
SHARE_LIMIT_SECONDS = 300.0
DEATHS = 6
DEATH_PAUSE_SECONDS = 0.05
SEED = 5


def run() -> bool:
    """Measure bubbles, memory, shares, and deaths."""
    return all(
        (
            _report_bubble("pipeline_bubble", BUBBLE_BOUND, "1f1b", 1),
            _report_bubble("pipeline_bubble_interleaved", INTERLEAVED_BOUND, "interleaved_1f1b", 2),
            _report_memory(),
            _report_shares(),
            _report_deaths(),
        )
    )


def _report_bubble(name: str, bound: float, schedule: ScheduleKind, ranges_per_stage: int) -> bool:
    distances, details = [], []
    for stages in STAGES:
        with PacedCluster(
            name,
            stages=stages,
            micro_batches=MICRO_BATCHES,
            pause_seconds=PAUSE_SECONDS,
            schedule=schedule,
            ranges_per_stage=ranges_per_stage,
        ) as cluster:
            cluster.until_committed(WARM_UP_STEPS + STEPS)
            bubbles = [cluster.bubble(WARM_UP_STEPS + step) for step in range(STEPS)]
        expected = (stages - 1) / (ranges_per_stage * MICRO_BATCHES + stages - 1)
        distances.append(abs(median(bubbles) / expected - 1))
        shown = ", ".join(f"{100 * each:.2f}" for each in bubbles)
        details.append(
            f"{schedule}, {stages} stages, {MICRO_BATCHES} micro-batches: {shown} % idle in {STEPS} steps, "
            f"{100 * expected:.2f} % by the formula"
        )
    return report(name, max(distances), bound, *details)


def _report_memory() -> bool:
    ratios, details = [], []
    for stages in STAGES:
        few, many = (_measure_activations(stages, count) for count in (MICRO_BATCHES, MANY_MICRO_BATCHES))
        ratios += [after / before for before, after in zip(few, many, strict=True)]
        for count, kept in ((MICRO_BATCHES, few), (MANY_MICRO_BATCHES, many)):
            shown = ", ".join(f"{each / 2**20:.2f}" for each in kept)
            details.append(f"1f1b, {stages} stages, {count} micro-batches: {shown} MiB on a stage's chip")
    return report("pipeline_memory", max(ratios), MEMORY_BOUND, *details)


def _measure_activations(stages: int, micro_batches: int) -> list[float]:
    with PacedCluster(
        "pipeline_memory", stages=stages, micro_batches=micro_batches, pause_seconds=0.0
    ) as cluster:
        cluster.until_committed(WARM_UP_STEPS)
        return cluster.activation_bytes()


def _report_shares() -> bool:
    alone = _measure_hosts(1)[0]
    ratios, details = [], [f"the whole model: {alone / 2**20:.0f} MiB"]
    for stages in STAGES:
        shares = _measure_hosts(stages)
        ratios += [stages * each / alone for each in shares]
        shown = ", ".join(f"{each / 2**20:.0f}" for each in shares)
        details.append(f"{stages} stages: {shown} MiB")
    return report("pipeline_host_memory_share", max(ratios), SHARE_BOUND, *details)


def _measure_hosts(stages: int) -> list[int]:
    """Return the peak memory of each stage's process that a wide model takes beyond a narrow one."""
    narrow, wide = (_measure_width(stages, width) for width in (NARROW, WIDE))
    return [after - before for before, after in zip(narrow, wide, strict=True)]


def _measure_width(stages: int, width: int) -> list[int]:
    # Few tokens, so that weights and gradients take most of the memory.
    settings = (f"transformer_config.embedding_dim={width}", "batch_size=1", "validation_batch_size=1")
    evaluations = ("eval_every=1", "training_config.validation_batches=2")
    with PacedCluster(
        "pipeline_share",
        stages=stages,
        micro_batches=max(STAGES),
        pause_seconds=0.0,
        settings=(*settings, *evaluations),
    ) as cluster:
        cluster.until_committed(WARM_UP_STEPS, SHARE_LIMIT_SECONDS)
        return cluster.host_bytes()


@dataclass(frozen=True)
class Death:
    """Seconds of one death.

    Attributes:
        lost: from the start of the step to the death.
        detected: from the death to the line in the job's log.
        rebuilt: from there to the first pass of the new row, which has all weights.
        redone: from there to the COMMIT.
        step: a median step without a death.
    """

    lost: float
    detected: float
    rebuilt: float
    redone: float
    step: float

    @property
    def cost(self) -> float:
        """Time lost beyond detection and rebuilding, in steps."""
        return (self.lost + self.redone) / self.step - 1


def _report_deaths() -> bool:
    draw = random.Random(SEED)
    with PacedCluster(
        "pipeline_death",
        stages=2,
        micro_batches=MICRO_BATCHES,
        pause_seconds=DEATH_PAUSE_SECONDS,
        spares=1,
    ) as cluster:
        cluster.until_committed(WARM_UP_STEPS + STEPS)
        times = _commits(cluster)
        step = median(
            [after - before for before, after in zip(times[-STEPS - 1 :], times[-STEPS:], strict=False)]
        )
        deaths = [_kill_a_stage(cluster, draw, step) for _ in range(DEATHS)]
    return report(
        "pipeline_death_steps",
        max(each.cost for each in deaths),
        DEATH_BOUND,
        f"a step takes {1e3 * step:.0f} ms; median cost {median([each.cost for each in deaths]):.2f} steps",
        *(
            f"killed {1e3 * each.lost:.0f} ms into a step: detected in {1e3 * each.detected:.0f} ms, built and loaded "
            f"in {1e3 * each.rebuilt:.0f} ms, redone in {1e3 * each.redone:.0f} ms: {each.cost:.2f} steps"
            for each in deaths
        ),
    )


def _kill_a_stage(cluster: PacedCluster, draw: random.Random, step_seconds: float) -> Death:
    """Kill the worker of a random stage at a random moment of the next step, and start it again as a spare."""
    cluster.until_more_steps(2)
    begun_seconds, step = _commits(cluster)[-1], committed(cluster.events())
    cluster.until_moment(begun_seconds + draw.uniform(0.1, 0.9) * step_seconds, "a moment of a step")
    victim = draw.choice(cluster.computing(step))
    killed_seconds = cluster.kill(victim)
    told_seconds = cluster.until_told(victim, killed_seconds).seconds
    ready_seconds = cluster.until_told("is ready: stage", told_seconds).seconds
    cluster.until_committed(step + 1)
    commit_seconds = _commits(cluster)[step]
    again = min(each.start for each in cluster.passes(step) if each.start > ready_seconds)
    cluster.restart(victim)
    cluster.address(victim)
    return Death(
        lost=killed_seconds - begun_seconds,
        detected=told_seconds - killed_seconds,
        rebuilt=again - told_seconds,
        redone=commit_seconds - again,
        step=step_seconds,
    )


def _commits(cluster: PacedCluster) -> list[float]:
    """Return when each step so far was committed, in Unix time."""
    return [event.seconds for event in cluster.events() if event.committed]
