"""recovery: what the death of a daemon costs: detection time, repeated work and the time to rejoin.

One cluster of real daemons (slowed_cluster.py: 3 tiers, 3 workers, a heartbeat of 1 s) runs one endless job. Workers
are killed (SIGKILL) or frozen (SIGSTOP); to the others a frozen worker looks like one that is cut off. Deaths happen at
a random moment of a worker's lease, or just before the end of the largest lease, where most work is lost.

* Detection: heartbeats from the death to the line in the job's log that names the worker. The figure is the maximum.
* A worker's death: duration of the step in which it died, from COMMIT to COMMIT, minus the detection, over the median
  step of the two remaining workers. So it includes lost work, repeated work and new leases. Frozen workers don't
  count: the others go on until the freeze is detected, which would make the figure look better.
* A rejoin: steps from the one under way when the worker reports that it is ready to the first one in which it computes.
  The figure is the maximum.
* The aggregator's death: micro-batches that were started more than once, in steps. The figure is the maximum.

The time from an optimizer's restart until it reports its checkpoint is printed too, without a bound.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from benchmarks.harness.logged_cluster import committed, steps_around
from benchmarks.harness.report import median, report
from benchmarks.harness.slowed_cluster import HEARTBEAT_SECONDS, MICRO_BATCHES, WORKERS, SlowedCluster

KILLS, FREEZES, RESTARTS = 10, 4, 4
"""Numbers of worker kills, worker freezes and aggregator kills. The optimizer is killed half as often."""
STEADY_STEPS = 4
LATEST = 0.94
"""Latest moment of a death, as a fraction of a worker's lease. Its last micro-batch has not ended by then."""
SEED = 5


@dataclass(frozen=True)
class Death:
    """Measurements of one death of a worker.

    Attributes:
        detected_seconds: time until the aggregator noticed it.
        step_seconds: duration of the step in which it happened.
        before_seconds: median duration of the steps before.
        after_seconds: median duration of the steps after.
        rejoin_steps: steps from the worker's return to its first micro-batch.
        repeated: micro-batches of the step that were started a second time.
    """

    detected_seconds: float
    step_seconds: float
    before_seconds: float
    after_seconds: float
    rejoin_steps: int
    repeated: int

    @property
    def cost(self) -> float:
        """Duration of the step, minus the detection, in steps of the remaining workers."""
        return (self.step_seconds - self.detected_seconds) / self.after_seconds


def run(kills: int = KILLS, freezes: int = FREEZES, restarts: int = RESTARTS) -> bool:
    """Kill and freeze daemons, and report each figure."""
    draw = random.Random(SEED)
    names = [f"worker-{number + 1}" for number in range(WORKERS)]
    with SlowedCluster("recovery") as cluster:
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
        f"median {median(costs):.2f}; each, and its repeated micro-batches: "
        + ", ".join(f"{each.cost:.2f} ({each.repeated})" for each in killed),
        f"step with all workers {_milliseconds([each.before_seconds for each in killed])}; without the dead one "
        f"{_milliseconds([each.after_seconds for each in killed])}; step of the death, minus the detection, "
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
            f"from its restart to the next COMMIT {_milliseconds(back)}",
            *(
                [f"from the optimizer's restart to its report of a checkpoint {_milliseconds(went_back)}"]
                if went_back
                else []
            ),
        )
    return reached


def _milliseconds(seconds: list[float]) -> str:
    return f"median {1e3 * median(seconds):.0f} ms, most {1e3 * max(seconds):.0f} ms"


def _drawn(
    cluster: SlowedCluster, draw: random.Random, names: list[str], *, latest: bool
) -> tuple[str, float]:
    """Wait for some steps of all workers, then return the next victim and the fraction of its lease it completes.

    Args:
        latest: choose the worker with the largest lease, and the latest moment.
    """
    cluster.until_more_steps(STEADY_STEPS + 1)
    return (cluster.busiest(names), LATEST) if latest else (draw.choice(names), draw.uniform(0.05, LATEST))


def _death(cluster: SlowedCluster, name: str, part: float, *, frozen: bool) -> Death:
    """Kill or freeze a worker when it has completed this fraction of its lease, then bring it back."""
    cluster.await_moment(name, part)
    at_seconds = cluster.freeze(name) if frozen else cluster.kill(name)
    gone = cluster.until_told(f"worker {name} is gone", at_seconds)
    cluster.until_more_steps(STEADY_STEPS + 1)
    before, during, after = steps_around(cluster.events(), at_seconds, STEADY_STEPS)
    step = committed(each for each in cluster.events() if each.seconds < at_seconds)
    repeated = sum(each.step == step for each in cluster.begun()) - MICRO_BATCHES
    returned_seconds = time.time()
    if frozen:
        cluster.thaw(name)
    else:
        cluster.restart(name)
    ready = cluster.until_told(f"worker {name} is ready", returned_seconds)
    under_way = committed(each for each in cluster.events() if each.seconds <= ready.seconds)
    first = cluster.until_takes_part(name, under_way)
    return Death(
        gone.seconds - at_seconds, during, median(before), median(after), first.step - under_way, repeated
    )


def _aggregator_deaths(
    cluster: SlowedCluster, draw: random.Random, names: list[str], count: int
) -> tuple[list[float], list[float]]:
    """Kill the aggregator this many times.

    Returns:
        For each death: how many steps were repeated, and the seconds from its restart to the next COMMIT.
    """
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


def _optimizer_death(cluster: SlowedCluster) -> float:
    """Kill the optimizer, and return the seconds from its restart to its report that it loaded a checkpoint."""
    at_seconds = cluster.kill("optimizer")
    cluster.restart("optimizer")
    cluster.address("optimizer")
    ready_seconds = time.time()
    report_event = cluster.until_told("the optimizer went back", at_seconds)
    cluster.until_told("Step:", report_event.seconds)
    return max(0.0, report_event.seconds - ready_seconds)
