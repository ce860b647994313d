"""What deaths cost: how soon they are noticed, what of a step they take, when who comes back takes part.

One cluster of real daemons (paced_cluster.py: 3 tiers, 3 workers, a heartbeat of 1 s), one job without an end. A worker
is killed (-9), or frozen (SIGSTOP), which is all that others see of one that is cut off, too: at random moments of what
it computes in a step, and, when it computes most of it, just before the end of that: there most is lost.

* Detection: from the death to the line in the job's log that names it, in heartbeats; the most of all.
* A worker's death: the time of the step in which it fell, from COMMIT to COMMIT, less the detection, over the median
  step of the two that remain. So all is in it: what was done before, what is done again, and the sharing out. Only of
  workers that are killed: while a frozen one is not noticed, the others go on, which would flatter the figure.
* A rejoin: the worker is ready when it has built the job and says so. Counted are the steps from the one that is under
  way then to the first of which it computes a part; the most of all.
* The aggregator's death: micro-batches that were begun more often than once, in steps; the most of all.

Under them, unbounded: from an optimizer's readiness after its death to the news that it went back to a checkpoint.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from benchmarks.harness.paced_cluster import (
    HEARTBEAT_SECONDS,
    MICRO_BATCHES,
    WORKERS,
    PacedCluster,
    committed,
    steps_around,
)
from benchmarks.harness.report import median, report

KILLS, FREEZES, RESTARTS = 10, 4, 4
"""Of workers, of workers, and of the aggregator; the optimizer dies half as often."""
STEADY_STEPS = 4
LATEST = 0.94
"""Part of a worker's computing in a step: it still has its last micro-batch to end."""
SEED = 5


@dataclass(frozen=True)
class Death:
    """Of a worker.

    Attributes:
        detected_seconds: until it was noticed.
        step_seconds: of the step in which it fell.
        before_seconds, after_seconds: of the median step before and after it.
        rejoin_steps: from its readiness to its first part of a step.
        again: micro-batches of the step that were begun a second time.
    """

    detected_seconds: float
    step_seconds: float
    before_seconds: float
    after_seconds: float
    rejoin_steps: int
    again: int

    @property
    def cost(self) -> float:
        """The step in which it fell, in steps of those that remained."""
        return (self.step_seconds - self.detected_seconds) / self.after_seconds


def run(kills: int = KILLS, freezes: int = FREEZES, restarts: int = RESTARTS) -> bool:
    """Kill and freeze; report each figure."""
    draw = random.Random(SEED)
    names = [f"worker-{number + 1}" for number in range(WORKERS)]
    with PacedCluster("recovery") as cluster:
        for name in names:
            cluster.until_takes_part(name)
        cluster.until_more_steps(STEADY_STEPS)
        killed = [
            _death(cluster, *_drawn(cluster, draw, names, latest=number % 2 == 1), frozen=False)
            for number in range(kills)
        ]
        frozen = [
            _death(cluster, *_drawn(cluster, draw, names, latest=False), frozen=True) for _ in range(freezes)
        ]
        recomputed, back = _aggregator_deaths(cluster, draw, names, restarts)
        went_back = [_optimizer_death(cluster) for _ in range(restarts // 2)]
    return _report(killed, frozen, recomputed, back, went_back)


def _report(
    killed: list[Death],
    frozen: list[Death],
    recomputed: list[float],
    back: list[float],
    went_back: list[float],
) -> bool:
    silent = [each.detected_seconds / HEARTBEAT_SECONDS for each in frozen]
    reached = True
    if frozen:
        reached &= report(
            "recovery_detection_heartbeats",
            max(silent),
            3.0,
            f"frozen: median {median(silent):.2f} of {len(frozen)}, heartbeat {HEARTBEAT_SECONDS:g} s",
            f"killed: {_milliseconds([each.detected_seconds for each in killed])}",
        )
    costs = [each.cost for each in killed]
    reached &= report(
        "recovery_worker_death_steps",
        max(costs),
        1.2,
        f"median {median(costs):.2f}; each, and micro-batches begun again: "
        + ", ".join(f"{each.cost:.2f} ({each.again})" for each in killed),
        f"step with all {_milliseconds([each.before_seconds for each in killed])}; without it "
        f"{_milliseconds([each.after_seconds for each in killed])}; the step in which it fell, less the detection, "
        f"{_milliseconds([each.step_seconds - each.detected_seconds for each in killed])}",
    )
    rejoins = [each.rejoin_steps for each in (*killed, *frozen)]
    reached &= report(
        "recovery_rejoin_steps", max(rejoins), 2, f"median {median(rejoins):g} of {len(rejoins)}", decimals=0
    )
    if recomputed:
        reached &= report(
            "recovery_aggregator_death_recomputed_steps",
            max(recomputed),
            1.0,
            f"median {median(recomputed):.2f} of {len(recomputed)}",
            f"from its readiness to the next COMMIT {_milliseconds(back)}",
            *(
                [f"from the optimizer's readiness to its going back {_milliseconds(went_back)}"]
                if went_back
                else []
            ),
        )
    return reached


def _milliseconds(seconds: list[float]) -> str:
    return f"median {1e3 * median(seconds):.0f} ms, most {1e3 * max(seconds):.0f} ms"


def _drawn(
    cluster: PacedCluster, draw: random.Random, names: list[str], *, latest: bool
) -> tuple[str, float]:
    """After some steps of all workers, one, and the part of its computing in a step after which it dies; the latest, of
    who has most to lose."""
    cluster.until_more_steps(STEADY_STEPS + 1)
    return (cluster.busiest(names), LATEST) if latest else (draw.choice(names), draw.uniform(0.05, LATEST))


def _death(cluster: PacedCluster, name: str, part: float, *, frozen: bool) -> Death:
    """Have a worker die when it has done a part of what it computes in a step, and come back."""
    cluster.await_moment(name, part)
    at_seconds = cluster.freeze(name) if frozen else cluster.kill(name)
    gone = cluster.until_told(f"worker {name} is gone", at_seconds)
    cluster.until_more_steps(STEADY_STEPS + 1)
    before, during, after = steps_around(cluster.events(), at_seconds, STEADY_STEPS)
    step = committed(each for each in cluster.events() if each.seconds < at_seconds)
    again = sum(each.step == step for each in cluster.begun()) - MICRO_BATCHES
    came_seconds = time.time()
    if frozen:
        cluster.thaw(name)
    else:
        cluster.restart(name)
    ready = cluster.until_told(f"worker {name} is ready", came_seconds)
    under_way = committed(each for each in cluster.events() if each.seconds <= ready.seconds)
    first = cluster.until_takes_part(name, under_way)
    return Death(
        gone.seconds - at_seconds, during, median(before), median(after), first.step - under_way, again
    )


def _aggregator_deaths(
    cluster: PacedCluster, draw: random.Random, names: list[str], count: int
) -> tuple[list[float], list[float]]:
    """Steps that were computed again, and seconds from the aggregator's readiness to the next COMMIT, of each death."""
    recomputed, back = [], []
    for _ in range(count):
        cluster.until_more_steps(STEADY_STEPS)
        cluster.await_moment(draw.choice(names), draw.uniform(0.05, LATEST))
        at_seconds = cluster.kill("aggregator")
        cluster.restart("aggregator")
        cluster.address("aggregator")
        ready_seconds = time.time()
        under_way = committed(each for each in cluster.events() if each.seconds < at_seconds)
        cluster.until_committed(under_way + 2)
        begun = sum(each.step in (under_way, under_way + 1) for each in cluster.begun())
        recomputed.append(begun / MICRO_BATCHES - 2)
        next_commit = next(
            e.seconds for e in cluster.events() if e.committed > under_way and e.seconds > at_seconds
        )
        back.append(max(0.0, next_commit - ready_seconds))
    return recomputed, back


def _optimizer_death(cluster: PacedCluster) -> float:
    """Seconds from the optimizer's readiness after a death until people are told that it went back."""
    at_seconds = cluster.kill("optimizer")
    cluster.restart("optimizer")
    cluster.address("optimizer")
    ready_seconds = time.time()
    told = cluster.until_told("the optimizer went back", at_seconds)
    cluster.until_told("Step:", told.seconds)
    return max(0.0, told.seconds - ready_seconds)
